/* The engine's settings as Python gives them. */
#ifndef SP_ACCEPTOR_SETTINGS_H
#define SP_ACCEPTOR_SETTINGS_H

#include "acceptor_object.h"

/* One number of the settings dict, 0 to `limit`. */
static inline int sp_take_setting(PyObject *settings, const char *name, uint64_t limit, uint64_t *out)
{
    PyObject *value = PyDict_GetItemString(settings, name);
    if (value == NULL) {
        PyErr_Format(PyExc_ValueError, "the acceptor needs the setting %s", name);
        return -1;
    }
    *out = PyLong_AsUnsignedLongLong(value);
    if (*out == (uint64_t)-1 && PyErr_Occurred())
        return -1;
    if (*out > limit) {
        PyErr_Format(PyExc_ValueError, "%s = %llu is more than %llu", name, (unsigned long long)*out,
                     (unsigned long long)limit);
        return -1;
    }
    return 0;
}

static inline int sp_take_settings(struct sp_acceptor_settings *to, PyObject *settings)
{
    const struct {
        const char *name;
        uint32_t *out;
        uint64_t limit;
    } wanted[] = {
        {"frame_bytes", &to->frame_bytes, UINT32_C(1) << 28},
        {"hello_bytes", &to->hello_bytes, UINT32_C(1) << 28},
        {"hello_timeout_ms", &to->hello_timeout_ms, UINT32_C(1) << 30},
        {"handshake_timeout_ms", &to->handshake_timeout_ms, UINT32_C(1) << 30},
        {"heartbeat_ms", &to->heartbeat_ms, UINT32_C(1) << 30},
        {"idle_timeout_ms", &to->idle_timeout_ms, UINT32_C(1) << 30},
        {"send_timeout_ms", &to->send_timeout_ms, UINT32_C(1) << 30},
        {"resume_window_ms", &to->resume_window_ms, UINT32_C(1) << 30},
        {"resume_bytes_per_session", &to->resume_bytes_per_session, UINT32_C(1) << 30},
        {"connections", &to->connections, UINT32_C(1) << 24},
        {"connections_per_address", &to->connections_per_address, UINT32_C(1) << 24},
        {"handshakes_per_second", &to->handshakes_per_second, 1000000},
        {"messages_per_second", &to->messages_per_second, 10000000},
        {"outbound_bytes", &to->outbound_bytes, UINT32_C(1) << 30},
        {"slow_client", &to->slow_client, SP_SLOW_CLOSE},
    };
    uint64_t value;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (sp_take_setting(settings, wanted[i].name, wanted[i].limit, &value) < 0)
            return -1;
        *wanted[i].out = (uint32_t)value;
    }
    if (sp_take_setting(settings, "envelope", 1, &value) < 0)
        return -1;
    to->envelope = value != 0;
    if (sp_take_setting(settings, "inbound_bytes", UINT64_C(1) << 40, &to->inbound_bytes) < 0)
        return -1;
    if (to->handshakes_per_second == 0 || to->frame_bytes == 0 || to->outbound_bytes == 0) {
        PyErr_SetString(PyExc_ValueError, "handshakes_per_second, frame_bytes and outbound_bytes must be positive");
        return -1;
    }
    return 0;
}

/* A quarter of the shortest time that is watched over, at most a second. */
static inline uint64_t sp_sweep_period_ns(const struct sp_acceptor_settings *s)
{
    uint32_t times[] = {s->hello_timeout_ms, s->handshake_timeout_ms, s->heartbeat_ms, s->idle_timeout_ms,
                        s->send_timeout_ms, s->resume_window_ms == 0 ? UINT32_MAX : s->resume_window_ms};
    uint32_t shortest = 4000;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        shortest = times[i] < shortest ? times[i] : shortest;
    uint64_t ms = shortest / 4;
    return (ms < 20 ? 20 : ms) * 1000000;
}

#endif
