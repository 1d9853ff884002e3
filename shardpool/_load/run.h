/* The two loops of the engine: opening the connections, and one run over them. Both go in steps of bounded time, so that the
 * caller can look for signals and report progress between them. */
#ifndef SHARDPOOL_LOAD_RUN_H
#define SHARDPOOL_LOAD_RUN_H

#include "receive.h"

static int wait_events(struct engine *engine, struct epoll_event *events, uint64_t until)
{
    uint64_t now = now_ns();
    uint64_t wait = until > now ? until - now : 0;
    struct timespec timeout = {.tv_sec = (time_t)(wait / SECOND_NS), .tv_nsec = (long)(wait % SECOND_NS)};
    /* Milliseconds are too coarse for 10,000 messages in a second; the kernel has nanoseconds since 5.11. */
    int count = (int)syscall(SYS_epoll_pwait2, engine->epoll, events, EVENTS, &timeout, NULL, 0);
    if (count < 0 && (errno == ENOSYS || errno == EPERM))
        count = epoll_wait(engine->epoll, events, EVENTS, (int)(wait / 1000000));
    return count < 0 ? 0 : count;
}

/* ---- opening ---- */

static bool resolve(struct engine *engine)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int status = getaddrinfo(engine->host, engine->service, &hints, &found);
    if (status != 0 || found == NULL) {
        note_error(engine, "%s: %s", engine->host, gai_strerror(status));
        return false;
    }
    memcpy(&engine->address, found->ai_addr, found->ai_addrlen);
    engine->address_length = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

static void open_connection(struct engine *engine, struct connection *connection)
{
    connection->fd = socket(engine->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection->fd < 0)
        return note_error(engine, "connection %u: socket: %s (raise `ulimit -n`?)", connection_number(engine, connection), strerror(errno));
    connection->state = CONNECTING;
    engine->alive++;
    int one = 1;
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(connection->fd, (struct sockaddr *)&engine->address, engine->address_length) != 0 && errno != EINPROGRESS) {
        note_error(engine, "connection %u: connect: %s", connection_number(engine, connection), strerror(errno));
        return drop(engine, connection);
    }
    connection->blocked = true;
    watch(engine, connection, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
}

static void finish_connect(struct engine *engine, struct connection *connection)
{
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
        note_error(engine, "connection %u: connect: %s", connection_number(engine, connection), strerror(error));
        return drop(engine, connection);
    }
    if (!engine->websocket) {
        say_hello(engine, connection);
    } else {
        char request[768];
        int length_request = snprintf(request, sizeof request,
                                      "GET %s HTTP/1.1\r\nHost: %s:%s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                      "Sec-WebSocket-Key: " WS_KEY "\r\nSec-WebSocket-Version: 13\r\n\r\n",
                                      engine->path, engine->host, engine->service);
        connection->state = UPGRADING;
        if (!bytes_append(&engine->out, request, (size_t)length_request))
            engine->failed_memory = true;
    }
    flush(engine, connection, now_ns());
}

static void serve(struct engine *engine, struct connection *connection, uint32_t events)
{
    if (connection->state == CLOSED)
        return;
    if (connection->state == CONNECTING) {
        if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
            finish_connect(engine, connection);
        return;
    }
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        serve_readable(engine, connection);
    else if (events & EPOLLOUT)
        flush(engine, connection, now_ns());
}

/* True when there is nothing left to wait for: each connection is ready or gone. */
static bool open_step(struct engine *engine, uint64_t until)
{
    struct epoll_event events[EVENTS];
    while (now_ns() < until) {
        while (engine->opened < engine->count && engine->alive - engine->ready < CONNECTING_MAX)
            open_connection(engine, &engine->connections[engine->opened++]);
        if (engine->opened == engine->count && engine->ready == engine->alive)
            return true;
        int count = wait_events(engine, events, until);
        for (int i = 0; i < count; i++)
            serve(engine, &engine->connections[events[i].data.u32], events[i].events);
        if (engine->failed_memory)
            return true;
    }
    return false;
}

/* ---- running ---- */

static bool reserve_stamps(struct engine *engine, uint32_t least)
{
    uint32_t window = 1;
    while (window < least)
        window *= 2;
    if (window <= engine->window)
        return true;
    for (uint32_t i = 0; i < engine->count; i++) {
        free(engine->connections[i].stamps);
        engine->connections[i].stamps = calloc(window, sizeof(uint64_t));
        if (engine->connections[i].stamps == NULL)
            return false;
    }
    engine->window = window;
    engine->mask = window - 1;
    return true;
}

/* Nothing may be on its way when a run begins. */
static bool run_begin(struct engine *engine, const struct plan *plan)
{
    engine->plan = *plan;
    memset(&engine->tally, 0, sizeof engine->tally);
    engine->error[0] = '\0';
    engine->issued = engine->owed = 0;
    engine->dirty_count = 0;
    if (!reserve_stamps(engine, plan->mode == MODE_RATE ? RATE_WINDOW : plan->outstanding))
        return false;
    engine->tally.start_ns = now_ns();
    engine->tally.end_ns = engine->tally.start_ns + plan->duration_ns;
    for (uint32_t i = 0; i < engine->count; i++) {
        struct connection *connection = &engine->connections[i];
        connection->scheduled = 0;
        connection->dirty = false;
        if (plan->mode != MODE_WINDOW || i >= plan->senders || connection->state != READY)
            continue;
        connection->due = plan->outstanding;
        engine->owed += plan->outstanding;
        flush(engine, connection, now_ns());
    }
    return true;
}

static uint64_t due_at(const struct engine *engine, uint64_t message)
{
    return engine->tally.start_ns + (uint64_t)((double)message * engine->plan.interval_ns);
}

static void issue_due(struct engine *engine, uint64_t now)
{
    uint64_t at;
    while ((at = due_at(engine, engine->issued)) <= now && at < engine->tally.end_ns) {
        struct connection *connection = &engine->connections[engine->issued++ % engine->plan.senders];
        if (connection->state != READY) {
            engine->tally.unfinished++;
            continue;
        }
        connection->due++;
        engine->owed++;
        if (!connection->dirty) {
            connection->dirty = true;
            engine->dirty[engine->dirty_count++] = connection_number(engine, connection);
        }
    }
    for (uint32_t i = 0; i < engine->dirty_count; i++) {
        struct connection *connection = &engine->connections[engine->dirty[i]];
        connection->dirty = false;
        if (connection->state == READY)
            flush(engine, connection, now);
    }
    engine->dirty_count = 0;
}

static bool run_finished(const struct engine *engine, uint64_t now)
{
    if (engine->ready == 0 || engine->failed_memory)
        return true;
    if (now < engine->tally.end_ns)
        return false;
    if (engine->plan.mode == MODE_RECEIVE || now >= engine->tally.end_ns + engine->plan.grace_ns)
        return true;
    if (engine->in_flight != 0 || engine->owed != 0)
        return false;
    /* Pushes may still come after the last reply: until none has come for a while. */
    return engine->tally.pushes == 0 || now - engine->tally.push_ns_last > QUIET_NS;
}

/* True when the run is over. */
static bool run_step(struct engine *engine, uint64_t until)
{
    struct epoll_event events[EVENTS];
    for (;;) {
        uint64_t now = now_ns();
        uint64_t wake = until;
        if (engine->plan.mode == MODE_RATE) {
            issue_due(engine, now);
            uint64_t next = due_at(engine, engine->issued);
            if (next < engine->tally.end_ns && next < wake)
                wake = next;
        }
        if (run_finished(engine, now))
            return true;
        if (now >= until)
            return false;
        if (now >= engine->tally.end_ns && now + QUIET_NS / 10 < wake)
            wake = now + QUIET_NS / 10;
        else if (now < engine->tally.end_ns && engine->tally.end_ns < wake)
            wake = engine->tally.end_ns;
        int count = wait_events(engine, events, wake);
        for (int i = 0; i < count; i++)
            serve(engine, &engine->connections[events[i].data.u32], events[i].events);
    }
}

/* What is still on its way is given up; its connection is closed, because a late reply would be taken for another's. */
static void run_end(struct engine *engine)
{
    for (uint32_t i = 0; i < engine->count; i++) {
        struct connection *connection = &engine->connections[i];
        if (connection->state == READY && (connection->in_flight != 0 || connection->due != 0))
            drop(engine, connection);
    }
    engine->plan.senders = engine->count;
}

static void engine_close(struct engine *engine)
{
    for (uint32_t i = 0; i < engine->count && engine->connections != NULL; i++) {
        struct connection *connection = &engine->connections[i];
        if (connection->state == READY && engine->framing == FRAMING_SESSION && !connection->blocked) {
            write_frame(engine, connection, WS_BINARY, "B", 1, NULL, 0);
            send_bytes(engine, connection, &engine->out);
        }
        drop(engine, connection);
    }
}

static void engine_free(struct engine *engine)
{
    engine_close(engine);
    for (uint32_t i = 0; i < engine->count && engine->connections != NULL; i++) {
        free(engine->connections[i].stamps);
        bytes_free(&engine->connections[i].left);
        bytes_free(&engine->connections[i].pending);
    }
    free(engine->connections);
    free(engine->dirty);
    bytes_free(&engine->hello);
    bytes_free(&engine->payload);
    bytes_free(&engine->welcome);
    bytes_free(&engine->out);
    if (engine->epoll >= 0)
        close(engine->epoll);
    engine->connections = NULL;
    engine->dirty = NULL;
    engine->epoll = -1;
}

#endif
