#include "data/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool terminal_is_at(int file)
{
    const char *kind = getenv("TERM");
    return kind && *kind && strcmp(kind, "dumb") != 0 && isatty(file);
}

bool terminal_has_colour(int file)
{
    const char *none = getenv("NO_COLOR");
    return !(none && *none) && terminal_is_at(file);
}

int terminal_columns(int file)
{
    struct winsize size;
    return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}
