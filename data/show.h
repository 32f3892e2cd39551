/* Text from outside as a person gets to see it on a terminal: control characters and bytes that are
 * no UTF-8 are escaped, so that they do nothing there, and no character is cut. */
#ifndef ZF_DATA_SHOW_H
#define ZF_DATA_SHOW_H

#include <stddef.h>

/* As much of `text` as fits. A character that was cut before, at a precision's end, becomes an
 * ellipsis. */
void show_text(char *out, size_t size, const char *text);
/* All of it, as a new string. */
char *show_whole(const char *text);

/* The same as a shell takes it for one word: in quotes, unless it is plain. The caller frees. */
char *show_shell_word(const char *text);

#endif
