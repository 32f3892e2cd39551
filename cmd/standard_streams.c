#include "cmd/standard_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool standard_streams_begin(struct zf_error *err)
{
    const bool closed = fcntl(STDOUT_FILENO, F_GETFD) < 0;
    int fd = 0;
    while (fd >= 0 && fd <= STDERR_FILENO) /* takes the numbers that are free */
        fd = open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO)
        close(fd);
    signal(SIGXFSZ, SIG_IGN);
    return !closed ||
           zf_fail(err, "standard output is closed: >/dev/null is for what nobody is to read");
}

bool standard_streams_end(struct zf_error *err)
{
    errno = 0;
    const bool whole = fflush(stdout) == 0 && !ferror(stdout);
    return whole || zf_fail(err, "standard output could not be written whole%s%s",
                            errno ? ": " : "", errno ? strerror(errno) : "");
}
