#include "data/mapped.h"

#include "data/alloc.h"
#include "data/file.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct mapped {
    struct mapped *next;
    const char *memory;
    size_t bytes;
    char *sentence; /* that is written if it cannot be read */
};

static struct mapped *all;

/* In a signal handler: the list changes only while nobody reads what is mapped. */
static void cannot_be_read(int signal_number, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;
    (void)context;
    for (const struct mapped *m = all; m; m = m->next) {
        if (at < m->memory || at >= m->memory + m->bytes)
            continue;
        if (write(STDERR_FILENO, m->sentence, strlen(m->sentence)) < 0)
            _exit(1);
        _exit(1);
    }
    signal(signal_number, SIG_DFL); /* it comes again */
}

static void watch(const char *path, const void *memory, size_t bytes)
{
    struct sigaction action = {.sa_sigaction = cannot_be_read, .sa_flags = SA_SIGINFO};
    struct mapped *m = zf_malloc(sizeof *m);
    *m = (struct mapped){.next = all, .memory = memory, .bytes = bytes};
    m->sentence = zf_format("%s: %s: the file became shorter, or could not be read, while it was "
                            "being read\n",
                            program_invocation_short_name, path);
    all = m;
    sigaction(SIGBUS, &action, NULL);
}

const void *mapped_open(const char *path, size_t *bytes, struct zf_error *err)
{
    int fd = file_open(path, bytes, err);
    if (fd < 0)
        return NULL;
    void *memory = *bytes ? mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    int reason = *bytes ? errno : ENODATA;
    close(fd);
    if (memory == MAP_FAILED) {
        zf_fail(err, "%s: cannot be read: %s", path,
                reason == ENODATA ? "it is empty" : strerror(reason));
        return NULL;
    }
    madvise(memory, *bytes, MADV_WILLNEED);
    watch(path, memory, *bytes);
    return memory;
}

void mapped_close(const void *memory)
{
    for (struct mapped **m = &all, *gone; (gone = *m); m = &gone->next) {
        if (gone->memory != memory)
            continue;
        *m = gone->next;
        munmap((void *)gone->memory, gone->bytes);
        free(gone->sentence);
        free(gone);
        return;
    }
}
