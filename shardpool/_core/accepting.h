/* New connections: the limits before anything is kept for them, and no storm when descriptors run out. */
#ifndef SP_ACCEPTING_H
#define SP_ACCEPTING_H

#define SP_CLOSE_REASON_ADDRESS "too many connections from this address (connections_per_address)"
#define SP_CLOSE_REASON_FULL "the server has as many connections as it may (connections)"

#include <arpa/inet.h>
#include <netinet/tcp.h>

#include "input.h"

static inline bool sp_listener_arm(struct sp_engine *e, uint32_t index, bool on)
{
    struct sp_listener *listener = &e->listeners[index];
    if (listener->armed == on)
        return true;
    /* exclusive: of several idle acceptors the kernel wakes one; such a registration can only be added and removed */
    struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = SP_TAG_LISTENER << 56 | index};
    if (epoll_ctl(e->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener->fd, &event) < 0)
        return false;
    listener->armed = on;
    return true;
}

static inline void sp_listeners_arm(struct sp_engine *e, bool on)
{
    for (uint32_t i = 0; i < e->listener_count; i++)
        sp_listener_arm(e, i, on);
}

/* Switches the listeners off until `due`; connections wait in the backlog meanwhile. */
static inline void sp_accept_pause(struct sp_engine *e, uint64_t due_ns)
{
    sp_listeners_arm(e, false);
    e->rearm_ns = due_ns;
}

static inline uint32_t sp_address_text(const struct sockaddr_storage *address, char *text, uint32_t room)
{
    char host[INET6_ADDRSTRLEN] = "";
    unsigned port = 0;
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)address;
        inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
        port = ntohs(four->sin_port);
    } else if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)address;
        inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
        port = ntohs(six->sin6_port);
    } else {
        return 0;
    }
    int length = snprintf(text, room, address->ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, port);
    return length < 0 ? 0 : (uint32_t)length < room ? (uint32_t)length : room - 1;
}

static inline enum sp_stage sp_first_stage(const struct sp_engine *e, enum sp_transport transport)
{
    if (transport == SP_TRANSPORT_LOCAL)
        return SP_STAGE_HELLO;
    if (transport == SP_TRANSPORT_TCP)
        return e->settings.envelope ? SP_STAGE_HELLO : SP_STAGE_ATTACHING;
    return SP_STAGE_HANDSHAKE;
}

static inline void sp_accept_one(struct sp_engine *e, uint32_t listener, int fd, const struct sockaddr_storage *address)
{
    enum sp_transport transport = (enum sp_transport)e->listeners[listener].transport;
    struct sp_connection *c = sp_connection_take(&e->connections);
    if (c == NULL) {
        close(fd);
        return;
    }
    int on = 1;
    if (transport != SP_TRANSPORT_LOCAL)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->fd = fd;
    c->transport = (uint8_t)transport;
    c->local = transport == SP_TRANSPORT_LOCAL;
    c->envelope = c->local || e->settings.envelope;
    c->tls = transport == SP_TRANSPORT_TLS || transport == SP_TRANSPORT_WSS;
    bool framed = transport == SP_TRANSPORT_TCP || transport == SP_TRANSPORT_TLS || transport == SP_TRANSPORT_LOCAL;
    c->framing = framed ? SP_FRAMING_TCP : SP_FRAMING_RAW;
    c->stage = (uint8_t)sp_first_stage(e, transport);
    c->since_ms = c->received_ms = c->sent_ms = e->now_ms;
    sp_count(e->node, SP_COUNT_OPENED, 1);
    sp_gauge(e->node, SP_COUNT_CONNECTIONS, e->connections.live);
    c->armed = EPOLLIN;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = sp_client_address(e, c) & ~(UINT64_C(255) << 56)};
    if (epoll_ctl(e->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        sp_engine_drop(e, c, SP_CLOSE_INTERNAL);
        return;
    }
    char text[64];
    if (transport != SP_TRANSPORT_TCP || !e->settings.envelope)
        sp_engine_event(e, SP_EVENT_OPENED, sp_client_address(e, c), listener, 0, text,
                        sp_address_text(address, text, sizeof text));
    uint64_t key = sp_addresses_key(address);
    if (e->connections.live > e->settings.connections) {
        sp_engine_end_text(e, c, SP_CLOSE_FULL, SP_CLOSE_REASON_FULL);
    } else if (key != 0) {
        if (sp_addresses_add(&e->addresses, key, e->node->geometry.hash_key[0], e->settings.connections_per_address))
            c->address_key = key;
        else
            sp_engine_end_text(e, c, SP_CLOSE_FULL, SP_CLOSE_REASON_ADDRESS);
    }
}

/* P-27: programs of this uid, and root. The socket's mode says the same; this holds if somebody changes it. */
static inline bool sp_accept_trusts(int fd)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        return false;
    return peer.uid == geteuid() || peer.uid == 0;
}

/* handshakes_per_second: a bucket that holds one second's worth. */
static inline bool sp_accept_within_rate(struct sp_engine *e)
{
    uint64_t interval = UINT64_C(1000000000) / e->settings.handshakes_per_second;
    uint64_t due = e->accept_due_ns > e->now_ns ? e->accept_due_ns : e->now_ns;
    if (due + interval - e->now_ns > UINT64_C(1000000000) + interval)
        return false;
    e->accept_due_ns = due + interval;
    return true;
}

static inline void sp_accept_starved(struct sp_engine *e, int error)
{
    sp_accept_pause(e, e->now_ns + SP_STARVED_RETRY_NS);
    if (e->now_ns < e->starved_log_ns)
        return;
    e->starved_log_ns = e->now_ns + UINT64_C(1000000000);
    sp_engine_event(e, SP_EVENT_STARVED, 0, (uint64_t)error, 0, NULL, 0);
}

static inline void sp_accept(struct sp_engine *e, uint32_t listener)
{
    for (uint32_t n = 0; n < SP_ACCEPT_AT_ONCE && e->listeners[listener].armed; n++) {
        /* some places beyond the limit serve to tell refused clients why */
        if (e->connections.live >= e->settings.connections + 64) {
            sp_accept_pause(e, e->now_ns + SP_STARVED_RETRY_NS);
            return;
        }
        if (!sp_accept_within_rate(e)) {
            sp_accept_pause(e, e->now_ns + UINT64_C(20000000));
            return;
        }
        struct sockaddr_storage address = {0};
        socklen_t length = sizeof address;
        int fd = accept4(e->listeners[listener].fd, (struct sockaddr *)&address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0 && e->listeners[listener].transport == SP_TRANSPORT_LOCAL && !sp_accept_trusts(fd)) {
            close(fd);
            continue;
        }
        if (fd >= 0) {
            sp_accept_one(e, listener, fd, &address);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            sp_accept_starved(e, errno);
        if (errno == EINTR || errno == ECONNABORTED)
            continue; /* that client is gone already */
        return;
    }
}

static inline void sp_accept_resume(struct sp_engine *e)
{
    if (e->rearm_ns == 0 || e->now_ns < e->rearm_ns)
        return;
    e->rearm_ns = 0;
    if (e->accepting)
        sp_listeners_arm(e, true);
}

#endif
