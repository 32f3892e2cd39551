/* The files that a person names for a corpus: a file, a folder, a pattern, or several. */
#ifndef ZF_DATA_CORPUS_FILES_H
#define ZF_DATA_CORPUS_FILES_H

#include "data/error.h"

struct file_list {
    int n;
    char **paths;
    int n_passed_over; /* files of folders that are no text by their names */
};

/* `files`: see corpus.h. Fails where nothing is there of that name, or a folder has no text. */
bool corpus_find_files(struct file_list *list, const char *files, struct zf_error *err);
void file_list_free(struct file_list *list);

#endif
