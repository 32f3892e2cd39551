/* A folder that one process at a time may write into. The lock is a file in it, held by fcntl: it
 * goes with its holder, however that ends, and holds across machines where the folder is on NFS and
 * its server keeps locks. */
#ifndef ZF_DATA_FOLDER_LOCK_H
#define ZF_DATA_FOLDER_LOCK_H

#include "data/error.h"

struct folder_lock;

/* Takes the folder, which is there. NULL where another process has it: err then says which one, on
 * what machine, and since when. `key` is what err calls the folder. Where the file system keeps no
 * locks, a warning says so, and the lock holds nothing. */
struct folder_lock *folder_lock_take(const char *key, const char *folder, struct zf_error *err);
/* Gives it back; NULL is fine. */
void folder_lock_release(struct folder_lock *lock);

/* Fails as above, without taking the folder, which need not be there; clears away what a holder
 * that is dead has left. */
bool folder_lock_check(const char *key, const char *folder, struct zf_error *err);

#endif
