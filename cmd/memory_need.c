#include "cmd/memory_need.h"

#include "cmd/config/engine_settings.h"
#include "model/plan/plan.h"
#include "offload/host/memory.h"

struct gpt_size memory_model_size(const struct config *c, int longest)
{
    int seqs = c->do_train ? c->per_device_train_batch_size : 0;
    if ((c->do_eval || c->do_predict) && seqs < c->per_device_eval_batch_size)
        seqs = c->per_device_eval_batch_size;
    return (struct gpt_size){.max_tokens = seqs * longest,
                             .max_seqs = seqs,
                             .mode = !c->do_train                        ? GPT_EVALUATE
                                     : c->gradient_checkpointing == true ? GPT_TRAIN_RECOMPUTE
                                                                         : GPT_TRAIN};
}

struct gpt_size memory_step_size(const struct memory_job *job, const struct config *c)
{
    struct gpt_size size = memory_model_size(c, job->longest);
    size.ranks = comm_size(job->comm);
    size.value_slots = engine_value_slots(c);
    gpt_size_for_step(job->device, job->model, &size,
                      c->do_train ? c->gradient_accumulation_steps : 1);
    return size;
}

/* cuBLASLt's workspace, kernels that are loaded when they first run, and partial sums over rows,
 * which are less than two activations. */
#define SCRATCH_BYTES ((size_t)256 << 20)

size_t memory_scratch(const struct memory_job *job, const struct gpt_size *size)
{
    const struct device *d = job->device;
    const size_t activation = (size_t)size->max_tokens * (size_t)job->model->n_embd;
    return d->is_cpu ? 0 : SCRATCH_BYTES + 2 * activation * dtype_size(d->dtype);
}

struct memory_use memory_need_held(const struct memory_job *job, const struct gpt_size *size,
                                   const struct engine_config *engine)
{
    struct memory_use use = {.workspace = memory_scratch(job, size),
                             .collectives = comm_device_allowance(job->comm)};
    gpt_measure(job->device, job->model, size, &use);
    struct param_table table = gpt_param_table(job->model);
    gpt_place_params(&table, size);
    engine_measure(engine, job->device, &table, comm_rank(job->comm), comm_size(job->comm), &use);
    params_free(&table);
    return use;
}

struct memory_use memory_need(const struct memory_job *job, const struct config *c)
{
    const struct gpt_size size = memory_step_size(job, c);
    const struct engine_config engine = engine_settings(c, NULL);
    return memory_need_held(job, &size, &engine);
}

size_t memory_need_host(const struct memory_job *job, const struct config *c)
{
    const struct engine_config engine = engine_settings(c, NULL);
    if (job->device->unified)
        return 0;
    struct param_table table = gpt_param_table(job->model);
    const size_t bytes = engine_measure_host(&engine, job->device, &table, comm_rank(job->comm),
                                             comm_size(job->comm));
    params_free(&table);
    return bytes;
}

size_t memory_of_host(const struct device *device)
{
    return device->plan ? (size_t)plan_machine(device->plan)->host_memory_bytes
                        : host_memory_limit("");
}
