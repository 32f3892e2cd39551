/* data/folder_lock: one holder at a time, who is named; whoever is dead holds nothing. */
#include "tests/folder.h"
#include "tests/testing.h"

#include "data/alloc.h"
#include "data/file.h"
#include "data/folder_lock.h"

#include <signal.h>
#include <sys/wait.h>

/* Another process that takes the lock and waits until it is killed. */
static pid_t holder(void)
{
    int pipes[2];
    char done;
    assert_int_equal(pipe(pipes), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct zf_error err;
        struct folder_lock *lock = folder_lock_take("output_dir", folder, &err);
        if (!lock || write(pipes[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(pipes[0], &done, 1), 1);
    close(pipes[0]);
    close(pipes[1]);
    return pid;
}

static void end(pid_t pid)
{
    int status;
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void names_the_holder(void **state)
{
    (void)state;
    struct zf_error err;
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    pid_t pid = holder();
    assert_null(folder_lock_take("output_dir", folder, &err));
    char *who =
        zf_format("output_dir %s is in use: process %ld on %s since 20", folder, (long)pid, host);
    assert_says(err, who);
    assert_false(folder_lock_check("output_dir", folder, &err));
    assert_says(err, who);
    free(who);
    end(pid);
}

static bool is_empty(void)
{
    struct file_names names;
    struct zf_error err;
    assert_works(file_list(folder, &names, &err), err);
    const bool empty = names.n == 0;
    file_names_free(&names);
    return empty;
}

static void a_dead_holder_blocks_nobody(void **state)
{
    (void)state;
    struct zf_error err;
    end(holder());
    assert_false(is_empty());
    assert_works(folder_lock_check("output_dir", folder, &err), err);
    assert_true(is_empty());
    end(holder());
    struct folder_lock *lock = folder_lock_take("output_dir", folder, &err);
    assert_non_null(lock);
    folder_lock_release(lock);
    assert_true(is_empty());
    folder_lock_release(NULL);
}

static void shows_no_control_bytes(void **state)
{
    (void)state;
    struct zf_error err;
    char *path = zf_format("%s/.zf_train.lock", folder);
    pid_t pid = holder();
    FILE *f = fopen(path, "r+");
    fputs("\033[2Jme\xff\n", f);
    fclose(f);
    assert_false(folder_lock_check("output_dir", folder, &err));
    assert_says(err, "in use: ?[2Jme? writes into it");
    end(pid);
    unlink(path);
    free(path);
}

static void follows_no_link(void **state)
{
    (void)state;
    struct zf_error err;
    char *path = zf_format("%s/.zf_train.lock", folder);
    assert_int_equal(symlink("/tmp/zf-test-lock-elsewhere", path), 0);
    assert_null(folder_lock_take("output_dir", folder, &err));
    assert_says(err, ".zf_train.lock: cannot be written");
    assert_false(file_exists("/tmp/zf-test-lock-elsewhere"));
    unlink(path);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_the_holder),
        cmocka_unit_test(a_dead_holder_blocks_nobody),
        cmocka_unit_test(shows_no_control_bytes),
        cmocka_unit_test(follows_no_link),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
