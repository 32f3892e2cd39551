#include "offload/comm/watch.h"

#include "data/alloc.h"
#include "data/log.h"
#include "offload/comm/place.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST_ADDRESSES  16
#define CONNECT_SECONDS 5.0
/* How long a launcher has to end the ranks itself when one is gone, as mpirun does in a second. */
#define LAUNCHER_SECONDS 3.0
/* This thread itself was kept from running for so long: what others said meanwhile is unread. */
#define ABSENT_SECONDS 5.0

enum kind { GOES_ON, GOODBYE, FAULT };

/* What ranks send each other, as it lies in memory: they run the same program. */
struct message {
    int32_t kind, works;
    uint64_t calls, marks;
    char place[32], call[32]; /* "": in no collective */
};

struct peer {
    char host[64];
    int64_t process;
    int socket; /* -1: none */
    struct message said;
    size_t got;          /* bytes of the message that is on its way */
    struct message next; /* it */
    struct message sent; /* to it, the last one, */
    size_t unsent;       /* and how many of its bytes are still to go */
    double heard, moved; /* when it last said something, and something new */
    double gone;         /* since when its connection has been closed; 0: it has not been */
};

struct watch {
    struct comm *comm;
    double timeout;
    const char *key;
    struct peer *peers; /* (size); of a rank above 0, rank 0 alone has a socket */
    int wake[2];        /* a pipe; closed at the end */
    pthread_t thread;
};

/* Not clock_seconds(), which may be another clock's. */
static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct message own_message(enum kind kind)
{
    const struct place at = place_now();
    struct message m = {.kind = kind, .works = at.works, .calls = at.calls, .marks = at.marks};
    snprintf(m.place, sizeof m.place, "%s", at.name);
    if (at.call)
        snprintf(m.call, sizeof m.call, "%.*s", (int)strcspn(at.call, "("), at.call);
    return m;
}

/* Whether nothing is left of the last message. */
static bool send_rest(struct peer *p)
{
    const char *from = (const char *)&p->sent + sizeof p->sent - p->unsent;
    ssize_t n = p->unsent ? send(p->socket, from, p->unsent, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    p->unsent -= n > 0 ? (size_t)n : 0;
    return p->unsent == 0;
}

/* To a rank that does not read, which is full some day, nothing more is sent but whole messages. */
static void send_message(struct peer *p, enum kind kind)
{
    if (p->socket < 0 || !send_rest(p))
        return;
    p->sent = own_message(kind);
    p->unsent = sizeof p->sent;
    send_rest(p);
}

static void drop(struct peer *p)
{
    if (p->socket >= 0)
        close(p->socket);
    p->socket = -1;
}

/* ---- what is said at the end ---- */

static void tell(const struct watch *w, int rank, const struct message *m)
{
    fprintf(stderr, "  rank %d (process %lld on %s): at %s, %s%.*s%s%llu collectives\n", rank,
            (long long)w->peers[rank].process, w->peers[rank].host, m->place,
            *m->call ? "waiting in " : "", (int)sizeof m->call, m->call,
            *m->call ? " after " : "after ", (unsigned long long)m->calls - (*m->call ? 1 : 0));
}

static _Noreturn void end_all(struct watch *w)
{
    fflush(stderr);
    for (int r = 0; r < comm_size(w->comm); r++)
        send_message(&w->peers[r], FAULT);
    usleep(200000);
    _exit(1);
}

/* Names the rank, and says where all are that this one hears of. */
static _Noreturn void fail(struct watch *w, int rank, const char *what, double since)
{
    int me = comm_rank(w->comm);
    struct message mine = own_message(FAULT);
    if (me > 0)
        usleep(200000u * (unsigned)(me < 20 ? me : 20)); /* the lowest says it */
    fprintf(stderr, "zf-train: rank %d (process %lld on %s) %s", rank,
            (long long)w->peers[rank].process, w->peers[rank].host, what);
    if (since > 0)
        fprintf(stderr, " for %.0f seconds (%s is %g)", since, w->key, w->timeout);
    fputs(": all ranks end. Where they were:\n", stderr);
    for (int r = 0; r < comm_size(w->comm); r++)
        if (r == me || w->peers[r].heard > 0)
            tell(w, r, r == me ? &mine : &w->peers[r].said);
    end_all(w);
}

/* ---- listening ---- */

/* A whole message has come. */
static void take(struct watch *w, struct peer *p, double now)
{
    if (p->next.kind == GOODBYE) {
        drop(p);
        p->heard = 0;
        return;
    }
    if (p->next.marks != p->said.marks)
        p->moved = now;
    p->said = p->next;
    p->said.place[sizeof p->said.place - 1] = p->said.call[sizeof p->said.call - 1] = 0;
    p->heard = now;
    if (p->next.kind == FAULT) {
        usleep(500000); /* rank 0 has said why, and is the first to end */
        _exit(1);
    }
    (void)w;
}

static void read_peer(struct watch *w, struct peer *p, double now)
{
    while (p->socket >= 0) {
        ssize_t n =
            recv(p->socket, (char *)&p->next + p->got, sizeof p->next - p->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            drop(p);
            p->gone = now;
            return;
        }
        p->got += (size_t)n;
        if (p->got == sizeof p->next) {
            p->got = 0;
            take(w, p, now);
        }
    }
}

/* ---- judging ---- */

static void check_peers(struct watch *w, double now)
{
    for (int r = 0; r < comm_size(w->comm); r++) {
        struct peer *p = &w->peers[r];
        if (p->gone > 0 && now - p->gone >= LAUNCHER_SECONDS)
            fail(w, r, "has ended before the others", 0);
        if (w->timeout > 0 && p->socket >= 0 && now - p->heard >= w->timeout)
            fail(w, r, "is stopped or unreachable: nothing was heard of it", now - p->heard);
    }
}

/* On rank 0: no rank goes on, and all are at work that should. The one with the fewest collectives
 * is what the others wait for. */
static void check_standstill(struct watch *w, double now)
{
    struct peer *me = &w->peers[0];
    struct message mine = own_message(GOES_ON);
    int last = 0;
    if (mine.marks != me->said.marks)
        me->moved = now;
    me->said = mine;
    double idle = now - me->moved;
    bool all_work = mine.works;
    for (int r = 1; r < comm_size(w->comm); r++) {
        const struct peer *p = &w->peers[r];
        if (p->socket < 0)
            continue;
        all_work = all_work && p->said.works;
        idle = now - p->moved < idle ? now - p->moved : idle;
        const struct message *a = &p->said, *b = &w->peers[last].said;
        if (a->calls < b->calls || (a->calls == b->calls && !*a->call && *b->call))
            last = r;
    }
    if (w->timeout > 0 && all_work && idle >= w->timeout)
        fail(w, last, "is the one that the others wait for: no rank has gone on", idle);
}

static void *watch(void *argument)
{
    struct watch *w = argument;
    int n = comm_size(w->comm);
    struct pollfd *files = zf_malloc(sizeof *files * (size_t)(n + 1));
    double before = seconds_now(), sent = 0;
    for (;;) {
        files[n] = (struct pollfd){.fd = w->wake[0], .events = POLLIN};
        for (int r = 0; r < n; r++)
            files[r] = (struct pollfd){.fd = w->peers[r].socket, .events = POLLIN};
        poll(files, (nfds_t)n + 1, 1000);
        if (files[n].revents)
            break;
        double now = seconds_now();
        for (int r = 0; r < n; r++)
            read_peer(w, &w->peers[r], now);
        if (now - before >= ABSENT_SECONDS)
            for (int r = 0; r < n; r++)
                if (w->peers[r].socket >= 0)
                    w->peers[r].heard = w->peers[r].moved = now;
        before = now;
        if (now - sent < 1)
            continue;
        sent = now;
        for (int r = 0; r < n; r++)
            send_message(&w->peers[r], GOES_ON);
        check_peers(w, now);
        if (comm_rank(w->comm) == 0)
            check_standstill(w, now);
    }
    free(files);
    return NULL;
}

/* ---- connecting ---- */

/* Where rank 0 listens, and what those who connect must know. */
struct address {
    uint64_t token;
    uint16_t port;
    int n;
    struct in_addr addresses[MOST_ADDRESSES];
};

struct hello {
    uint64_t token;
    int64_t rank;
};

/* Rank 0's addresses, that of this machine's own among them. */
static void list_addresses(struct address *a)
{
    struct ifaddrs *all, *at;
    if (getifaddrs(&all) != 0)
        return;
    for (at = all; at; at = at->ifa_next)
        if (at->ifa_addr && at->ifa_addr->sa_family == AF_INET && (at->ifa_flags & IFF_UP) &&
            a->n < MOST_ADDRESSES)
            a->addresses[a->n++] = ((struct sockaddr_in *)(void *)at->ifa_addr)->sin_addr;
    freeifaddrs(all);
}

/* The socket on which rank 0 listens, or -1: n is then 0. */
static int listen_for_ranks(struct address *a)
{
    struct sockaddr_in name = {.sin_family = AF_INET};
    socklen_t size = sizeof name;
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s >= 0 && getrandom(&a->token, sizeof a->token, 0) == (ssize_t)sizeof a->token &&
        bind(s, (struct sockaddr *)&name, size) == 0 && listen(s, SOMAXCONN) == 0 &&
        getsockname(s, (struct sockaddr *)&name, &size) == 0) {
        a->port = name.sin_port;
        list_addresses(a);
        return s;
    }
    if (s >= 0)
        close(s);
    return -1;
}

/* A connection to one address, within some seconds, or -1. */
static int connect_to(struct in_addr address, uint16_t port)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = port, .sin_addr = address};
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fault = 0;
    struct timeval limit = {.tv_sec = (time_t)CONNECT_SECONDS};
    if (s < 0)
        return -1;
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* holds for connect too */
    fault = connect(s, (struct sockaddr *)&name, sizeof name);
    if (fault == 0)
        return s;
    close(s);
    return -1;
}

/* A connection on which this rank has said who it is; this machine's own address does not lead to
 * another machine. */
static int connect_to_first(const struct address *a, int rank, bool same_host)
{
    struct hello hello = {a->token, rank};
    for (int i = 0; i < a->n; i++) {
        bool own = (ntohl(a->addresses[i].s_addr) >> 24) == 127;
        int s = own == same_host ? connect_to(a->addresses[i], a->port) : -1;
        if (s >= 0 && send(s, &hello, sizeof hello, MSG_NOSIGNAL) == (ssize_t)sizeof hello)
            return s;
        if (s >= 0)
            close(s);
    }
    return -1;
}

/* The ranks that connected say who they are; strangers are sent away. */
static void accept_ranks(struct watch *w, int listening, uint64_t token, int wanted)
{
    double end = seconds_now() + 2 * CONNECT_SECONDS;
    while (wanted > 0 && seconds_now() < end) {
        struct pollfd file = {.fd = listening, .events = POLLIN};
        struct timeval limit = {.tv_sec = 1};
        struct hello hello;
        int s = poll(&file, 1, 1000) > 0 ? accept4(listening, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (s < 0)
            continue;
        setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (recv(s, &hello, sizeof hello, MSG_WAITALL) == (ssize_t)sizeof hello &&
            hello.token == token && hello.rank > 0 && hello.rank < comm_size(w->comm) &&
            w->peers[hello.rank].socket < 0) {
            w->peers[hello.rank].socket = s;
            wanted--;
        } else {
            close(s);
        }
    }
}

/* Who each rank is. */
static void meet(struct watch *w)
{
    struct {
        char host[64];
        int64_t process;
    } mine = {.process = getpid()}, *all = zf_malloc(sizeof mine * (size_t)comm_size(w->comm));
    gethostname(mine.host, sizeof mine.host - 1);
    comm_all_gather(w->comm, &mine, all, sizeof mine);
    for (int r = 0; r < comm_size(w->comm); r++) {
        w->peers[r] = (struct peer){.process = all[r].process, .socket = -1};
        memcpy(w->peers[r].host, all[r].host, sizeof all[r].host);
    }
    free(all);
}

static void connect_ranks(struct watch *w)
{
    struct comm *c = w->comm;
    struct address address = {0};
    int me = comm_rank(c), listening = me == 0 ? listen_for_ranks(&address) : -1;
    comm_broadcast(c, &address, sizeof address, 0);
    if (me > 0)
        w->peers[0].socket =
            connect_to_first(&address, me, strcmp(w->peers[0].host, w->peers[me].host) == 0);
    double connected = me > 0 && w->peers[0].socket >= 0;
    comm_all_reduce_f64(c, &connected, 1);
    if (me == 0 && listening >= 0)
        accept_ranks(w, listening, address.token, (int)connected);
    if (listening >= 0)
        close(listening);
    if ((int)connected < comm_size(c) - 1)
        log_warn("rank 0 cannot be reached by %d of the other ranks, which are not watched",
                 comm_size(c) - 1 - (int)connected);
}

struct watch *watch_start(struct comm *comm, double timeout, const char *key)
{
    if (comm_size(comm) == 1)
        return NULL;
    struct watch *w = zf_malloc(sizeof *w);
    *w = (struct watch){.comm = comm, .timeout = timeout, .key = key};
    w->peers = zf_calloc((size_t)comm_size(comm), sizeof *w->peers);
    meet(w);
    connect_ranks(w);
    for (int r = 0; r < comm_size(comm); r++)
        w->peers[r].heard = w->peers[r].moved = w->peers[r].socket >= 0 ? seconds_now() : 0;
    w->peers[comm_rank(comm)].moved = seconds_now();
    if (pipe2(w->wake, O_CLOEXEC) != 0 || pthread_create(&w->thread, NULL, watch, w) != 0) {
        struct zf_error err;
        zf_fail(&err, "cannot start a thread to watch the ranks: %s", strerror(errno));
        comm_abort(comm, &err);
    }
    return w;
}

void watch_stop(struct watch *w)
{
    if (!w)
        return;
    comm_barrier(w->comm); /* nobody's silence counts any more */
    close(w->wake[1]);
    pthread_join(w->thread, NULL);
    close(w->wake[0]);
    for (int r = 0; r < comm_size(w->comm); r++) {
        send_message(&w->peers[r], GOODBYE);
        drop(&w->peers[r]);
    }
    free(w->peers);
    free(w);
}
