#include "cmd/memory_choice.h"

#include "cmd/config/engine_settings.h"
#include "cmd/config/table.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ZERO          "zero_optimization."
#define ZENF          ZERO "zenflow."
#define OFFLOAD_PARAM ZERO "offload_param."
#define MICRO         "per_device_train_batch_size"
#define STEPS         "gradient_accumulation_steps"

/* Blocks' parameters that the device has room for at least, where that is left open: with one, no
 * block comes while another is computed. */
#define LEAST_SLOTS 2

/* DeepSpeed's windows, where one length is to be named. */
#define FIXED_WINDOWS 4

/* ---- changes of a configuration that save memory ---- */

static bool evaluates(const struct config *c)
{
    return c->do_eval || c->do_predict;
}

static bool never(const struct config *c)
{
    (void)c;
    return false;
}

static bool leave_warm_up(struct config *c)
{
    const bool can = c->do_train && c->zenflow.enabled && c->zenflow.full_warm_up_rounds > 0;
    c->zenflow.full_warm_up_rounds = 0;
    return can;
}

static void name_warm_up(const struct config *c, char *text, size_t size)
{
    snprintf(text, size, ZENF "full_warm_up_rounds %d", c->zenflow.full_warm_up_rounds);
}

/* While their length is open there is room for windows of one step. */
static bool fix_windows(struct config *c)
{
    const bool can = c->do_train && c->zenflow.enabled && c->zenflow.topk_ratio < 1 &&
                     c->zenflow.update_interval <= 0;
    c->zenflow.update_interval = can ? FIXED_WINDOWS : c->zenflow.update_interval;
    return can;
}

static void name_interval(const struct config *c, char *text, size_t size)
{
    snprintf(text, size, ZENF "update_interval %d", c->zenflow.update_interval);
}

static bool halve_evaluation(struct config *c)
{
    const bool can = evaluates(c) && c->per_device_eval_batch_size > 1;
    c->per_device_eval_batch_size /= can ? 2 : 1;
    return can;
}

static void name_evaluation(const struct config *c, char *text, size_t size)
{
    snprintf(text, size, "per_device_eval_batch_size %d", c->per_device_eval_batch_size);
}

static bool leaves_micro_batch(const struct config *c)
{
    return c->do_train && c->divides_batch;
}

/* The next smaller micro-batch that divides a rank's part of the step. */
static bool divide_batch(struct config *c)
{
    const int part = c->per_device_train_batch_size * c->gradient_accumulation_steps;
    int micro = c->per_device_train_batch_size - 1;
    while (micro > 1 && part % micro != 0)
        micro--;
    if (!c->do_train || micro < 1)
        return false;
    c->per_device_train_batch_size = micro;
    c->gradient_accumulation_steps = part / micro;
    return true;
}

static void name_micro_batch(const struct config *c, char *text, size_t size)
{
    snprintf(text, size, MICRO " %d with " STEPS " %d", c->per_device_train_batch_size,
             c->gradient_accumulation_steps);
}

static bool leaves_recomputation(const struct config *c)
{
    return c->gradient_checkpointing == CONFIG_AUTO;
}

static bool recompute(struct config *c)
{
    const bool can = c->do_train && c->gradient_checkpointing != true;
    c->gradient_checkpointing = true;
    return can;
}

static void name_recomputation(const struct config *c, char *text, size_t size)
{
    snprintf(text, size, "gradient_checkpointing %s", c->gradient_checkpointing ? "true" : "false");
}

static bool leaves_windows(const struct config *c)
{
    return c->zenflow.enabled && c->zenflow.accumulate == ZENFLOW_ACCUMULATE_AUTO;
}

static bool gather_on_host(struct config *c)
{
    const bool can = c->do_train && c->zenflow.enabled && c->zenflow.topk_ratio < 1 &&
                     c->zenflow.accumulate != ZENFLOW_ACCUMULATE_HOST;
    c->zenflow.accumulate = ZENFLOW_ACCUMULATE_HOST;
    return can;
}

static bool gather_on_device(struct config *c)
{
    const bool can = c->do_train && c->zenflow.enabled && c->zenflow.topk_ratio < 1 &&
                     c->zenflow.accumulate == ZENFLOW_ACCUMULATE_HOST;
    c->zenflow.accumulate = ZENFLOW_ACCUMULATE_DEVICE;
    return can;
}

static void name_windows(const struct config *c, char *text, size_t size)
{
    const bool host = c->zenflow.accumulate == ZENFLOW_ACCUMULATE_HOST;
    snprintf(text, size, ZENF "accumulate \"%s\"", host ? "host" : "device");
}

static bool gather_all_on_host(struct config *c)
{
    const bool can = c->do_train && c->zenflow.enabled && c->zenflow.device_windows > 0 &&
                     c->zenflow.accumulate == ZENFLOW_ACCUMULATE_HOST;
    c->zenflow.device_windows = 0;
    return can;
}

static void name_device_windows(const struct config *c, char *text, size_t size)
{
    snprintf(text, size, ZENF "device_windows %d", c->zenflow.device_windows);
}

static bool leaves_important(const struct config *c)
{
    return c->zenflow.enabled && c->zenflow.offload == CONFIG_AUTO;
}

static bool offload_important(struct config *c)
{
    const bool can = c->do_train && c->zenflow.enabled && c->zenflow.offload != true;
    c->zenflow.offload = true;
    return can;
}

static void name_important(const struct config *c, char *text, size_t size)
{
    snprintf(text, size, ZENF "offload %s", c->zenflow.offload ? "true" : "false");
}

static bool leaves_slots(const struct config *c)
{
    return (c->offload_param != OFFLOAD_NONE || engine_divides_parameters(c)) &&
           c->param_buffers == CONFIG_AUTO;
}

static bool halve_slots(struct config *c)
{
    const bool can =
        c->param_buffers > 1 && (config_can_offload_parameters(c) || engine_divides_parameters(c));
    c->param_buffers /= can ? 2 : 1;
    return can;
}

static void name_slots(const struct config *c, char *text, size_t size)
{
    snprintf(text, size, OFFLOAD_PARAM "buffer_count %d", c->param_buffers);
}

static bool leaves_parameters(const struct config *c)
{
    return c->offload_param == OFFLOAD_AUTO;
}

static bool divide_parameters(struct config *c)
{
    const bool can = c->n_ranks > 1 && c->zero_stage != 3;
    c->zero_stage = 3;
    return can;
}

static void name_division(const struct config *c, char *text, size_t size)
{
    snprintf(text, size, ZERO "stage %d", c->zero_stage);
}

static bool offload_parameters(struct config *c)
{
    const bool can = c->offload_param != OFFLOAD_CPU && config_can_offload_parameters(c);
    c->offload_param = OFFLOAD_CPU;
    c->zero_stage = 3;
    return can;
}

static void name_parameters(const struct config *c, char *text, size_t size)
{
    const bool host = c->offload_param == OFFLOAD_CPU;
    snprintf(text, size, OFFLOAD_PARAM "device \"%s\"%s", host ? "cpu" : "none",
             host ? " (" ZERO "stage 3)" : "");
}

static bool offload_optimizer(struct config *c)
{
    const bool can = c->do_train && c->offload_optimizer != OFFLOAD_CPU;
    c->offload_optimizer = OFFLOAD_CPU;
    c->zero_stage = c->zero_stage > 0 ? c->zero_stage : 2;
    return can;
}

static void name_optimizer(const struct config *c, char *text, size_t size)
{
    snprintf(text, size, ZERO "offload_optimizer.device \"cpu\" (" ZERO "stage %d)", c->zero_stage);
}

static bool leave_zenflow(struct config *c)
{
    const bool can = c->do_train && c->zenflow.enabled;
    c->zenflow.enabled = false;
    return can;
}

static void name_zenflow(const struct config *c, char *text, size_t size)
{
    (void)c;
    snprintf(text, size, ZENF "enabled false");
}

static bool keep_optimizer(struct config *c)
{
    const bool can = c->do_train && c->offload_optimizer == OFFLOAD_CPU;
    c->offload_optimizer = OFFLOAD_NONE;
    c->offload_param = OFFLOAD_NONE;
    c->zenflow.enabled = false;
    return can;
}

static void name_kept_optimizer(const struct config *c, char *text, size_t size)
{
    (void)c;
    snprintf(text, size, ZERO "offload_optimizer.device \"none\" with " ZENF "enabled false");
}

/* All that can be done. What a combination costs says step_tokens; of those that cost as much the
 * one is taken that makes less of what stands last here. */
static const struct change {
    bool (*is_left)(const struct config *c); /* "auto" stands there */
    bool (*make)(struct config *c);          /* once more; false: it saves no more, or may not be */
    void (*name)(const struct config *c, char *text, size_t size); /* its keys, as they are */
    enum {
        ANY,
        TO_HOST,  /* saves nothing where the device's memory is the host's */
        FROM_HOST /* saves memory of the host */
    } saves;
    const char *keys[2]; /* that "auto" stands under */
} changes[] = {
    {never, leave_warm_up, name_warm_up, FROM_HOST, {NULL}},
    {never, fix_windows, name_interval, FROM_HOST, {NULL}},
    {never, gather_on_device, name_windows, FROM_HOST, {NULL}},
    {never, halve_evaluation, name_evaluation, ANY, {NULL}},
    {leaves_micro_batch, divide_batch, name_micro_batch, ANY, {MICRO, STEPS}},
    {leaves_recomputation, recompute, name_recomputation, ANY, {"gradient_checkpointing"}},
    {leaves_windows, gather_on_host, name_windows, TO_HOST, {ZENF "accumulate"}},
    {never, gather_all_on_host, name_device_windows, TO_HOST, {NULL}},
    {never, divide_parameters, name_division, ANY, {NULL}},
    {leaves_parameters, offload_parameters, name_parameters, TO_HOST, {OFFLOAD_PARAM "device"}},
    {leaves_important, offload_important, name_important, TO_HOST, {ZENF "offload"}},
    {leaves_slots, halve_slots, name_slots, TO_HOST, {OFFLOAD_PARAM "buffer_count"}},
    {never, offload_optimizer, name_optimizer, TO_HOST, {NULL}},
    {never, leave_zenflow, name_zenflow, TO_HOST, {NULL}},
    {never, keep_optimizer, name_kept_optimizer, FROM_HOST, {NULL}},
};
#define N_CHANGES ((int)(sizeof changes / sizeof *changes))
/* From here on each is a resort: dearer than all that those before it do together. */
#define FIRST_RESORT (N_CHANGES - 3)

/* ---- what they cost ---- */

/* What a step takes, in tokens: one is the time in which a device computes it. By plans of gpt2-xl
 * and gpt-6.7b with k = 5% and S = 4 on an H100, an A100 and an RTX 4090 (tests/bench/plans.sh,
 * "What each place costs"; all of it grows with the model, as computing does):
 *   recomputation adds 20%, a micro-batch 200 to 350 tokens; but nothing where the device waits;
 *   windows on the host: a step is not shorter than 4,100 to 7,100 (the host's memory, the link);
 *   blocks' parameters there: than 3,700 to 8,700 (the link), and up to 1,800 longer;
 *   important state there adds 1,300 in every step: nothing hides it.
 * So 4 x 512 tokens of gpt-6.7b take an H100 168 ms, and with each of these alone 196, 427, 527 and
 * 249; 16 x 512 take it 540, and 650, 518, 634 and 616: no order of changes is right for both. Of
 * ranks each has a link of its own, but their host is one: four need half as many tokens. */
#define MICRO_BATCH    250
#define RECOMPUTATION  1.2
#define HOST_WINDOWS   5600
#define PARAMETERS     4000
#define ARRIVALS       1500  /* what of parameters' coming is not hidden */
#define IMPORTANT_PART 25000 /* times k */

static double step_tokens(const struct memory_job *job, const struct config *c)
{
    const int micro_batches = c->gradient_accumulation_steps;
    const double all = (double)c->per_device_train_batch_size * micro_batches * job->longest;
    const double share = 1 / sqrt(c->n_ranks);
    double tokens = all * (c->gradient_checkpointing == true ? RECOMPUTATION : 1) +
                    MICRO_BATCH * (double)micro_batches;
    if (c->zenflow.enabled && c->zenflow.accumulate == ZENFLOW_ACCUMULATE_HOST)
        tokens = fmax(tokens, HOST_WINDOWS * share);
    if (c->offload_param == OFFLOAD_CPU) /* into one slot nothing comes while a block computes */
        tokens =
            c->param_buffers > 1 ? fmax(tokens, PARAMETERS * share) : tokens + PARAMETERS * share;
    if (c->offload_param == OFFLOAD_CPU || engine_divides_parameters(c))
        tokens += ARRIVALS;
    if (c->zenflow.enabled && c->zenflow.offload == true)
        tokens += IMPORTANT_PART * c->zenflow.topk_ratio * share;
    return c->do_train ? tokens : 0;
}

/* ---- combinations of them ---- */

/* How often each change is made: the digits of a number, the first change's the lowest. */
struct combination {
    bool allowed[N_CHANGES];
    int times[N_CHANGES];
};

static bool make(const struct combination *k, const struct config *from, struct config *c)
{
    *c = *from;
    for (int i = N_CHANGES - 1; i >= 0; i--)
        for (int n = 0; n < k->times[i]; n++)
            if (!changes[i].make(c))
                return false;
    return true;
}

/* The next one, false behind the last. */
static bool count_on(struct combination *k, const struct config *from, struct config *c)
{
    for (int i = 0; i < N_CHANGES; i++) {
        k->times[i] += k->allowed[i];
        if (k->allowed[i] && make(k, from, c))
            return true;
        k->times[i] = 0;
    }
    return false;
}

struct memory_lack memory_lack(const struct memory_job *job, const struct config *c,
                               const struct memory_room *room)
{
    const struct memory_use use = memory_need(job, c);
    const double host = (double)memory_need_host(job, c) - (double)room->host;
    return (struct memory_lack){
        comm_max(job->comm, (double)memory_total(&use) - (double)room->device),
        comm_max(job->comm, job->device->unified ? 0 : host)};
}

/* Bytes of both; 0: it fits. */
static double sum_of(struct memory_lack lack)
{
    return fmax(lack.device, 0) + fmax(lack.host, 0);
}

struct cost {
    int resort; /* the last of the resorts that is made; 0: none */
    double tokens;
};

/* Not less than it costs already: what would be faster too is no better than what is as fast. */
static struct cost cost_of(const struct memory_job *job, const struct combination *k,
                           const struct config *from, const struct config *c)
{
    struct cost cost = {0, fmax(step_tokens(job, from), step_tokens(job, c))};
    for (int i = FIRST_RESORT; i < N_CHANGES; i++)
        if (k->times[i] > 0)
            cost.resort = i;
    return cost;
}

static bool costs_less(struct cost a, struct cost b)
{
    return a.resort != b.resort ? a.resort < b.resort : a.tokens < b.tokens;
}

/* The combination that costs least of those that fit, into c and *k; or that which lacks least.
 * Returns what it lacks. */
static struct memory_lack search(const struct memory_job *job, const struct config *from,
                                 const struct memory_room *room, struct combination *k,
                                 struct config *c)
{
    struct combination at = *k;
    struct config tried = *from;
    struct memory_lack least = {INFINITY, INFINITY};
    struct cost lowest = {0};
    do {
        const struct cost cost = cost_of(job, &at, from, &tried);
        const bool fits = sum_of(least) <= 0;
        if (fits && !costs_less(cost, lowest))
            continue;
        const struct memory_lack lack = memory_lack(job, &tried, room);
        if (fits ? sum_of(lack) <= 0 : sum_of(lack) < sum_of(least)) {
            *c = tried;
            *k = at;
            least = lack;
            lowest = cost;
        }
    } while (count_on(&at, from, &tried));
    return least;
}

/* ---- what is left open ---- */

static void append(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void append(char *text, size_t size, const char *format, ...)
{
    const size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, size - n, format, args);
    va_end(args);
}

struct size_text size_text(double bytes)
{
    struct size_text s;
    const double mib = bytes / (1 << 20);
    if (mib < 1024)
        snprintf(s.text, sizeof s.text, "%.1f MiB", mib);
    else
        snprintf(s.text, sizeof s.text, "%.2f GiB", mib / 1024);
    return s;
}

void memory_settle(const struct memory_job *job, struct config *c)
{
    for (int i = 0; i < N_CHANGES; i++)
        for (int n = 0; n < 2 && changes[i].is_left(c) && changes[i].keys[n]; n++)
            config_mark_auto(c, changes[i].keys[n]);
    if (leaves_recomputation(c))
        c->gradient_checkpointing = false;
    if (leaves_windows(c))
        c->zenflow.accumulate = ZENFLOW_ACCUMULATE_DEVICE;
    if (c->zenflow.device_windows == CONFIG_AUTO)
        c->zenflow.device_windows = 0;
    if (c->zenflow.offload == CONFIG_AUTO)
        c->zenflow.offload = false;
    if (leaves_parameters(c))
        c->offload_param = OFFLOAD_NONE;
    if (c->param_buffers == CONFIG_AUTO) { /* where there are no slots too */
        c->param_buffers = job->model->n_layer < LEAST_SLOTS ? job->model->n_layer : LEAST_SLOTS;
        config_mark_auto(c, OFFLOAD_PARAM "buffer_count");
    }
}

/* Without training nothing else is to be chosen. */
static bool places_parameters(const struct change *change)
{
    return change->make == offload_parameters || change->make == halve_slots;
}

/* Whether something is to be said of a change: it was made, or it might have been and neither was
 * another of the same keys. */
static bool is_told(const struct combination *k, int change)
{
    bool made = false, first = true;
    for (int i = 0; i < N_CHANGES; i++) {
        made |= changes[i].name == changes[change].name && k->times[i] > 0;
        first &= i >= change || !k->allowed[i] || changes[i].name != changes[change].name;
    }
    return k->allowed[change] && changes[change].make != halve_slots &&
           (k->times[change] > 0 || (!made && first));
}

static void append_lack(char *told, size_t size, struct memory_lack lack)
{
    if (lack.device > 0)
        append(told, size, "%s more than there is", size_text(lack.device).text);
    if (lack.host > 0)
        append(told, size, "%s%s more than there is on the host", lack.device > 0 ? ", and " : "",
               size_text(lack.host).text);
}

/* What was chosen; and where that is not the fastest, what was lacking for one change less. */
static void tell(const struct memory_job *job, const struct combination *k, int change,
                 const struct config *from, const struct config *c, const struct memory_room *room,
                 char *told, size_t size)
{
    char name[160];
    struct combination less = *k;
    struct config other;
    changes[change].name(c, name, sizeof name);
    append(told, size, "chosen: %s", name);
    less.times[change]--;
    if (k->times[change] > 0 && make(&less, from, &other)) {
        changes[change].name(&other, name, sizeof name);
        append(told, size, "; %s needs ", name);
        append_lack(told, size, memory_lack(job, &other, room));
    }
    append(told, size, "\n");
}

/* Where each block has a place of its own nothing need move. */
static bool keep_parameters(const struct memory_job *job, struct config *c,
                            const struct memory_room *room, char *told, size_t size)
{
    struct config kept = *c;
    kept.offload_param = OFFLOAD_NONE;
    kept.zero_stage = kept.zero_stage == 3 ? 2 : kept.zero_stage;
    if (c->param_buffers < job->model->n_layer || sum_of(memory_lack(job, &kept, room)) > 0)
        return false;
    *c = kept;
    append(told, size,
           "chosen: all %d blocks' parameters stay on the device, where there is room\n",
           job->model->n_layer);
    return true;
}

static int *slots_of(struct config *c)
{
    return &c->param_buffers;
}

static int *windows_of(struct config *c)
{
    return &c->zenflow.device_windows;
}

/* As many blocks have something on the device as fit. Returns what one more lacks, if there is
 * one. */
static struct memory_lack fill(const struct memory_job *job, struct config *c,
                               const struct memory_room *room, int *count_of(struct config *))
{
    struct config more = *c;
    struct memory_lack lack = {0};
    while (*count_of(c) < job->model->n_layer && sum_of(lack) <= 0) {
        ++*count_of(&more);
        lack = memory_lack(job, &more, room);
        *count_of(c) += sum_of(lack) <= 0;
    }
    return lack;
}

static void tell_count(const struct memory_job *job, const char *key, int count,
                       struct memory_lack lack, char *told, size_t size)
{
    append(told, size, "chosen: %s %d of %d blocks", key, count, job->model->n_layer);
    if (sum_of(lack) > 0) {
        append(told, size, "; %d need ", count + 1);
        append_lack(told, size, lack);
    }
    append(told, size, "\n");
}

static void fill_with_slots(const struct memory_job *job, struct config *c,
                            const struct memory_room *room, char *told, size_t size)
{
    const struct memory_lack lack = fill(job, c, room, slots_of);
    if (!keep_parameters(job, c, room, told, size))
        tell_count(job, OFFLOAD_PARAM "buffer_count", c->param_buffers, lack, told, size);
}

static void fill_with_windows(const struct memory_job *job, struct config *c,
                              const struct memory_room *room, char *told, size_t size)
{
    const struct memory_lack lack = fill(job, c, room, windows_of);
    tell_count(job, ZENF "device_windows", c->zenflow.device_windows, lack, told, size);
}

void memory_choose(const struct memory_job *job, struct config *c, const struct memory_room *room,
                   char *told, size_t size)
{
    struct combination k = {0};
    for (int i = 0; i < N_CHANGES; i++)
        k.allowed[i] = changes[i].is_left(c) && (c->do_train || places_parameters(&changes[i]));
    const bool slots = leaves_slots(c);
    const bool windows = leaves_windows(c) && c->zenflow.device_windows == CONFIG_AUTO;
    memory_settle(job, c);
    const struct config from = *c;
    const bool fits = sum_of(search(job, &from, room, &k, c)) <= 0;
    *told = 0;
    for (int i = 0; fits && i < N_CHANGES; i++)
        if (is_told(&k, i))
            tell(job, &k, i, &from, c, room, told, size);
    if (fits && slots && engine_value_slots(c) > 0)
        fill_with_slots(job, c, room, told, size);
    if (fits && windows && c->zenflow.accumulate == ZENFLOW_ACCUMULATE_HOST)
        fill_with_windows(job, c, room, told, size);
}

/* ---- what would fit ---- */

/* Bytes of device memory; and of the host's, if they are worth a word. */
static void append_need(char *text, size_t size, struct memory_lack lack,
                        const struct memory_room *room, bool host)
{
    append(text, size, "%s", size_text((double)room->device + lack.device).text);
    if (host)
        append(text, size, " and %s of host memory",
               size_text((double)room->host + lack.host).text);
}

void memory_advise(const struct memory_job *job, const struct config *c,
                   const struct memory_room *room, char *text, size_t size)
{
    struct combination k = {0};
    struct config other;
    const bool host = memory_lack(job, c, room).host > 0;
    for (int i = 0; i < N_CHANGES; i++)
        k.allowed[i] = changes[i].saves == FROM_HOST ? host
                       : changes[i].saves == TO_HOST ? !job->device->unified
                                                     : true;
    const struct memory_lack lack = search(job, c, room, &k, &other);
    *text = 0;
    if (sum_of(lack) > 0) {
        append(text, size, "the least that this run can need is ");
        append_need(text, size, lack, room, host || lack.host > 0);
        append(text, size, ": a smaller max_seq_length or model is needed");
        return;
    }
    append(text, size, "it fits with");
    int left = 0;
    for (int i = 0; i < N_CHANGES; i++)
        left += k.times[i] > 0;
    for (int i = 0, n = 0; i < N_CHANGES; i++) {
        char name[160];
        if (k.times[i] == 0)
            continue;
        changes[i].name(&other, name, sizeof name);
        append(text, size, "%s %s", n == 0 ? "" : n == left - 1 ? " and" : ",", name);
        n++;
    }
    append(text, size, ", and then needs ");
    append_need(text, size, lack, room, host);
}
