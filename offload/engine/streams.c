/* Streams and events, and what is on its way to a layer. */
#include "offload/engine/internal.h"

#include "data/alloc.h"

#include <stdlib.h>

void streams_create(struct engine *e)
{
    struct device *d = e->device;
    struct streams *s = &e->streams;
    size_t layers = (size_t)e->table->n_layers;
    /* Kernels beside the model's take what it leaves, which by plans costs it less than if they
     * were first. Collectives are: what one rank keeps waiting, all wait for. */
    s->summing = d->stream_create(STREAM_FIRST);
    s->gathering = d->stream_create(STREAM_FIRST);
    s->reducing = d->stream_create(STREAM_BEHIND);
    s->down = d->stream_create(STREAM_BEHIND);
    s->up = d->stream_create(STREAM_BEHIND);
    s->carrying = d->stream_create(STREAM_BEHIND);
    s->mark = d->event_create();
    s->norm_known = d->event_create();
    s->read = d->event_create();
    s->n_slots = params_gradient_slot(e->table, e->table->n_layers);
    s->taken = zf_calloc((size_t)s->n_slots, sizeof *s->taken);
    s->sent = zf_calloc((size_t)s->n_slots, sizeof *s->sent);
    for (int i = 0; i < s->n_slots; i++) {
        s->taken[i] = d->event_create();
        s->sent[i] = d->event_create();
    }
    s->arriving = zf_calloc(layers, sizeof *s->arriving);
    s->arrived = zf_calloc(layers, sizeof *s->arrived);
    for (size_t l = 0; l < layers; l++)
        s->arrived[l] = d->event_create();
}

void streams_release(struct engine *e)
{
    struct device *d = e->device;
    struct streams *s = &e->streams;
    struct stream *streams[] = {s->summing, s->reducing, s->gathering, s->down, s->up, s->carrying};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        d->stream_destroy(streams[i]);
    d->event_destroy(s->mark);
    d->event_destroy(s->norm_known);
    d->event_destroy(s->read);
    for (int l = 0; l < e->table->n_layers; l++)
        d->event_destroy(s->arrived[l]);
    for (int i = 0; i < s->n_slots; i++) {
        d->event_destroy(s->taken[i]);
        d->event_destroy(s->sent[i]);
    }
    free(s->arriving);
    free(s->arrived);
    free(s->taken);
    free(s->sent);
}

int streams_slot(const struct engine *e, int layer)
{
    return params_gradient_slot(e->table, layer);
}

void streams_wait(struct engine *e)
{
    struct streams *s = &e->streams;
    struct stream *streams[] = {s->summing, s->reducing, s->gathering,      s->down,
                                s->up,      s->carrying, e->device->compute};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        e->device->stream_wait(streams[i]);
}

void streams_follow(struct engine *e, struct stream *stream, struct stream *other)
{
    e->device->event_record(e->streams.mark, other);
    e->device->event_order(stream, e->streams.mark);
}

void streams_bring(struct engine *e, int layer, struct stream *stream)
{
    e->device->event_record(e->streams.arrived[layer], stream);
    e->streams.arriving[layer] = true;
}
