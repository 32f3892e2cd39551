#include "cmd/agree.h"

#include "cmd/config/table.h"
#include "data/alloc.h"
#include "data/checksum.h"
#include "data/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first item in which a rank is not like rank 0, of the lowest such rank; false: all agree. */
static bool find_odd(struct comm *comm, const struct agree_item *items, int n, int *odd_rank,
                     int *odd_item)
{
    size_t bytes = (size_t)n * sizeof(struct checksum);
    struct checksum *mine = zf_malloc(bytes), *all = zf_malloc(bytes * (size_t)comm_size(comm));
    bool found = false;
    for (int i = 0; i < n; i++)
        mine[i] = items[i].sum;
    comm_all_gather(comm, mine, all, bytes);
    for (int r = 1; r < comm_size(comm) && !found; r++)
        for (int i = 0; i < n && !found; i++)
            if (memcmp(&all[(size_t)r * (size_t)n + (size_t)i], &all[i], sizeof *all) != 0) {
                *odd_rank = r;
                *odd_item = i;
                found = true;
            }
    free(mine);
    free(all);
    return found;
}

bool agree(struct comm *comm, const struct agree_item *items, int n, struct zf_error *err)
{
    int rank, item;
    struct {
        char value[200], host[64];
    } said[2] = {0};
    if (comm_size(comm) == 1 || !find_odd(comm, items, n, &rank, &item))
        return true;
    for (int i = 0; i < 2; i++) {
        snprintf(said[i].value, sizeof said[i].value, "%s", items[item].value);
        gethostname(said[i].host, sizeof said[i].host - 1);
        comm_broadcast(comm, &said[i], sizeof said[i], i == 0 ? 0 : rank);
    }
    return zf_fail(err,
                   "ranks were not started on the same: %s: %s on rank 0 (%s), but %s on rank %d "
                   "(%s)",
                   items[item].name, said[0].value, said[0].host, said[1].value, rank,
                   said[1].host);
}

static struct agree_item item_of_text(const char *name, const char *text)
{
    struct agree_item item = {.sum = checksum_of(text, strlen(text))};
    snprintf(item.name, sizeof item.name, "%s", name);
    snprintf(item.value, sizeof item.value, "%s", text);
    return item;
}

/* ---- program and configuration ---- */

static bool agree_on_program(struct comm *comm, struct zf_error *err)
{
    struct agree_item item = {.name = "the program"};
    char digest[CHECKSUM_TEXT];
    size_t bytes;
    if (!comm_all_ok(comm, checksum_file("/proc/self/exe", &item.sum, &bytes, err), err))
        return false;
    checksum_text(item.sum, digest);
    snprintf(item.value, sizeof item.value, "zf-train " ZF_VERSION " (%s)", digest);
    return agree(comm, &item, 1, err);
}

/* Names of what is read. */
static bool is_source(const char *key)
{
    static const char *const names[] = {"model_name_or_path", "tokenizer_name",  "data_dir",
                                        "train_file",         "validation_file", "test_file"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(key, names[i]) == 0)
            return true;
    return false;
}

bool agree_on_start(struct comm *comm, const struct config *c, struct zf_error *err)
{
    if (comm_size(comm) == 1)
        return true;
    if (!agree_on_program(comm, err))
        return false;
    struct agree_item *items = zf_calloc((size_t)config_table_rows + 1, sizeof *items);
    const char *actions[] = {"to run", "--help", "--print_config", "--version"};
    int n = 0;
    items[n++] = item_of_text("what to do", actions[c->action]);
    for (int i = 0; i < config_table_rows; i++) {
        const struct config_key *key = &config_table[i];
        if (!key->name || key->same_as || is_source(config_option_name(key)))
            continue;
        json_t *value = config_value(c, key);
        char *text = value ? config_dump(value, 0) : zf_strdup("not given");
        items[n++] = item_of_text(config_option_name(key), text);
        free(text);
        json_decref(value);
    }
    bool ok = agree(comm, items, n, err);
    free(items);
    return ok;
}

/* ---- data and model ---- */

static struct agree_item item_of_data(const char *name, const char *file, const struct dataset *d,
                                      struct checksum sum)
{
    struct agree_item item = {.sum = sum};
    char digest[CHECKSUM_TEXT];
    checksum_text(item.sum, digest);
    snprintf(item.name, sizeof item.name, "%s", name);
    snprintf(item.value, sizeof item.value, "%d examples of %.90s with the digest %s",
             d->n_sequences, file ? file : "none", digest);
    return item;
}

/* What the model's config.json says, or the preset's. */
static bool item_of_model(const struct run *run, struct agree_item *item, struct zf_error *err)
{
    const struct config *c = run->config;
    const char *source = c->model_name_or_path ? c->model_name_or_path : c->config_name;
    char *file = zf_format("%s/config.json", source), digest[CHECKSUM_TEXT];
    size_t bytes;
    *item = (struct agree_item){.name = "the model's config.json",
                                .sum = checksum_of(source, strlen(source))};
    bool ok = !file_exists(file) || checksum_file(file, &item->sum, &bytes, err);
    checksum_text(item->sum, digest);
    snprintf(item->value, sizeof item->value, "that of %.90s with the digest %s", source, digest);
    free(file);
    return ok;
}

bool agree_on_input(const struct run *run, struct zf_error *err)
{
    if (comm_size(run->comm) == 1)
        return true;
    const struct config *c = run->config;
    struct agree_item items[2 + 2 * RUN_MAX_SPLITS];
    int n = 0;
    if (!comm_all_ok(run->comm, item_of_model(run, &items[n++], err), err))
        return false;
    items[n++] = item_of_data("the training data", c->train_file ? c->train_file : c->data_dir,
                              &run->train, run->train_sum);
    for (int i = 0; i < RUN_MAX_SPLITS; i++) {
        const struct dataset *dev = &run->dev[i].set, *test = &run->test[i].set;
        items[n++] = item_of_data("the evaluation data",
                                  c->validation_file ? c->validation_file : c->data_dir, dev,
                                  dataset_checksum(dev));
        items[n++] = item_of_data("the data to predict", c->test_file ? c->test_file : c->data_dir,
                                  test, dataset_checksum(test));
    }
    return agree(run->comm, items, n, err);
}

/* ---- weights ---- */

void agree_take_weights(struct run *run, const float *values, size_t n)
{
    if (comm_size(run->comm) > 1)
        run->weights = checksum_join(run->weights, checksum_of(values, n * sizeof *values));
}

bool agree_on_weights(struct run *run, const char *from, struct zf_error *err)
{
    struct agree_item item = {.name = "the model's weights", .sum = run->weights};
    char digest[CHECKSUM_TEXT];
    checksum_text(item.sum, digest);
    snprintf(item.value, sizeof item.value, "those of %.90s with the digest %s", from, digest);
    run->weights = (struct checksum){0};
    return comm_size(run->comm) == 1 || agree(run->comm, &item, 1, err);
}
