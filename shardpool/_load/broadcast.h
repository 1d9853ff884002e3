/* What the kernel alone costs when one message goes to many clients: a plain server, one thread, that writes each frame it reads
 * to every other connection and back to its sender, one send each. Publishing is measured against it. */
#ifndef SHARDPOOL_LOAD_BROADCAST_H
#define SHARDPOOL_LOAD_BROADCAST_H

#include "wire.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BROADCAST_EVENTS = 256, BROADCAST_READ = 64 * 1024, BROADCAST_CLIENTS = 16384 };

struct broadcast {
    int listener, epoll;
    int clients[BROADCAST_CLIENTS];
    int count;
    uint8_t in[BROADCAST_READ];
};

static void broadcast_write(int client, const uint8_t *data, size_t length)
{
    while (length != 0) {
        ssize_t sent = send(client, data, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            struct pollfd writable = {.fd = client, .events = POLLOUT};
            if (poll(&writable, 1, 1000) > 0)
                continue;
        }
        if (sent <= 0)
            return;
        data += sent;
        length -= (size_t)sent;
    }
}

static void broadcast_accept(struct broadcast *broadcast)
{
    int client = accept4(broadcast->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (client < 0)
        return;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = client};
    if (broadcast->count == BROADCAST_CLIENTS || epoll_ctl(broadcast->epoll, EPOLL_CTL_ADD, client, &event) != 0)
        close(client);
    else
        broadcast->clients[broadcast->count++] = client;
}

static void broadcast_read(struct broadcast *broadcast, int client)
{
    ssize_t got = recv(client, broadcast->in, sizeof broadcast->in, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        for (int i = 0; i < broadcast->count; i++)
            if (broadcast->clients[i] == client)
                broadcast->clients[i--] = broadcast->clients[--broadcast->count];
        close(client);
        return;
    }
    /* A read that ends within a frame does not happen with one small message on its way at a time. */
    for (int i = 0; i < broadcast->count; i++)
        broadcast_write(broadcast->clients[i], broadcast->in, (size_t)got);
}

/* One wait of at most 100 ms and what it brought; -1 when epoll fails. */
static int broadcast_turn(struct broadcast *broadcast)
{
    struct epoll_event events[BROADCAST_EVENTS];
    int count = epoll_wait(broadcast->epoll, events, BROADCAST_EVENTS, 100);
    for (int i = 0; i < count; i++) {
        if (events[i].data.fd == broadcast->listener)
            broadcast_accept(broadcast);
        else
            broadcast_read(broadcast, events[i].data.fd);
    }
    return count < 0 && errno != EINTR ? -1 : 0;
}

static int broadcast_begin(struct broadcast *broadcast, int listener)
{
    broadcast->listener = listener;
    broadcast->epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    return broadcast->epoll < 0 ? -1 : epoll_ctl(broadcast->epoll, EPOLL_CTL_ADD, listener, &event);
}

#endif
