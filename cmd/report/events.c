#include "cmd/report/events.h"

#include "data/alloc.h"
#include "data/file.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NAME "events.out.tfevents."

/* Of Event, ... */
enum { EVENT_WALL_TIME = 1, EVENT_STEP, EVENT_FILE_VERSION, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
/* ... SessionLog, Summary and its values, ... */
enum { SESSION_STATUS = 1, SESSION_START = 1, SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_SIMPLE, VALUE_TENSOR = 8, VALUE_METADATA };
/* ... and what a text is made of. */
enum { TENSOR_TYPE = 1, TENSOR_SHAPE, TENSOR_STRING = 8, TYPE_STRING = 7 };
enum { SHAPE_DIMENSION = 2, DIMENSION_SIZE = 1, METADATA_PLUGIN = 1, PLUGIN_NAME = 1 };

enum wire { VARINT, FIXED_64, BYTES, FIXED_32 = 5 };

/* A message that is being written. */
struct message {
    unsigned char *bytes;
    size_t n, room;
};

static void put(struct message *m, const void *bytes, size_t n)
{
    if (m->n + n > m->room) {
        m->room = 2 * (m->n + n);
        m->bytes = zf_realloc(m->bytes, m->room);
    }
    memcpy(m->bytes + m->n, bytes, n);
    m->n += n;
}

static void put_varint(struct message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put(m, &(unsigned char){(unsigned char)(value | 0x80)}, 1);
    put(m, &(unsigned char){(unsigned char)value}, 1);
}

static void put_key(struct message *m, int field, enum wire wire)
{
    put_varint(m, (uint64_t)field << 3 | wire);
}

/* The least significant byte first. */
static void put_fixed(struct message *m, uint64_t bits, int n)
{
    for (int i = 0; i < n; i++)
        put(m, &(unsigned char){(unsigned char)(bits >> 8 * i)}, 1);
}

static void put_double(struct message *m, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, FIXED_64);
    put_fixed(m, bits, 8);
}

static void put_float(struct message *m, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, FIXED_32);
    put_fixed(m, bits, 4);
}

static void put_whole(struct message *m, int field, uint64_t value)
{
    put_key(m, field, VARINT);
    put_varint(m, value);
}

static void put_text(struct message *m, int field, const char *text)
{
    const size_t n = strlen(text);
    put_key(m, field, BYTES);
    put_varint(m, n);
    put(m, text, n);
}

/* A message within another, which is done with. */
static void put_message(struct message *m, int field, struct message *inner)
{
    put_key(m, field, BYTES);
    put_varint(m, inner->n);
    put(m, inner->bytes, inner->n);
    free(inner->bytes);
}

/* CRC-32C (Castagnoli), a bit at a time: a record has a few dozen bytes. */
static uint32_t crc32c(const unsigned char *bytes, size_t n)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

/* As records have it, so that a file within a file has no checksum of checksums. */
static uint32_t masked_crc(const unsigned char *bytes, size_t n)
{
    const uint32_t crc = crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static void write_record(FILE *file, struct message *event)
{
    struct message head = {0}, tail = {0};
    put_fixed(&head, event->n, 8);
    put_fixed(&head, masked_crc(head.bytes, 8), 4);
    put_fixed(&tail, masked_crc(event->bytes, event->n), 4);
    fwrite(head.bytes, 1, head.n, file);
    fwrite(event->bytes, 1, event->n, file);
    fwrite(tail.bytes, 1, tail.n, file);
    free(head.bytes);
    free(tail.bytes);
    free(event->bytes);
}

/* What is zero is left out, as Protocol Buffers do. */
static struct message event_of(double wall_time, long step)
{
    struct message event = {0};
    put_double(&event, EVENT_WALL_TIME, wall_time);
    if (step != 0)
        put_whole(&event, EVENT_STEP, (uint64_t)step);
    return event;
}

static void write_value(FILE *file, double wall_time, long step, struct message *value)
{
    struct message event = event_of(wall_time, step), summary = {0};
    put_message(&summary, SUMMARY_VALUE, value);
    put_message(&event, EVENT_SUMMARY, &summary);
    write_record(file, &event);
}

void events_begin(FILE *file, double wall_time, long first_step)
{
    struct message version = event_of(wall_time, 0), session = {0};
    put_text(&version, EVENT_FILE_VERSION, "brain.Event:2");
    write_record(file, &version);
    if (first_step < 0)
        return;
    struct message start = event_of(wall_time, first_step);
    put_whole(&session, SESSION_STATUS, SESSION_START);
    put_message(&start, EVENT_SESSION, &session);
    write_record(file, &start);
}

void events_scalar(FILE *file, double wall_time, long step, const char *tag, double value)
{
    struct message scalar = {0};
    put_text(&scalar, VALUE_TAG, tag);
    put_float(&scalar, VALUE_SIMPLE, (float)value);
    write_value(file, wall_time, step, &scalar);
}

void events_text(FILE *file, double wall_time, long step, const char *tag, const char *text)
{
    struct message value = {0}, tensor = {0}, shape = {0}, dimension = {0};
    struct message metadata = {0}, plugin = {0};
    char *full = zf_format("%s/text_summary", tag);
    put_text(&value, VALUE_TAG, full);
    free(full);
    put_whole(&tensor, TENSOR_TYPE, TYPE_STRING);
    put_whole(&dimension, DIMENSION_SIZE, 1);
    put_message(&shape, SHAPE_DIMENSION, &dimension);
    put_message(&tensor, TENSOR_SHAPE, &shape);
    put_text(&tensor, TENSOR_STRING, text);
    put_message(&value, VALUE_TENSOR, &tensor);
    put_text(&plugin, PLUGIN_NAME, "text");
    put_message(&metadata, METADATA_PLUGIN, &plugin);
    put_message(&value, VALUE_METADATA, &metadata);
    write_value(file, wall_time, step, &value);
}

double events_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The second in a new file's name: now, or after those of all that are there. */
static bool choose_time(const char *folder, long *seconds, struct zf_error *err)
{
    struct file_names names;
    *seconds = (long)time(NULL);
    if (!file_make_directory(folder, err) || !file_list(folder, &names, err))
        return false;
    for (int i = 0; i < names.n; i++)
        if (strncmp(names.list[i], NAME, strlen(NAME)) == 0) {
            const long other = strtol(names.list[i] + strlen(NAME), NULL, 10);
            *seconds = *seconds > other ? *seconds : other + 1;
        }
    file_names_free(&names);
    return true;
}

bool events_create(struct events *e, const char *folder, long first_step, struct zf_error *err)
{
    char host[256] = "";
    long seconds;
    if (!choose_time(folder, &seconds, err))
        return false;
    gethostname(host, sizeof host - 1);
    e->path = zf_format("%s/" NAME "%010ld.%s.%ld.0", folder, seconds, host, (long)getpid());
    e->file = file_open_output(e->path, false, err);
    if (!e->file) {
        free(e->path);
        return false;
    }
    events_begin(e->file, events_now(), first_step);
    return true;
}

bool events_flush(const struct events *e, struct zf_error *err)
{
    return (fflush(e->file) == 0 && !ferror(e->file)) ||
           zf_fail(err, "%s: cannot be written: %s", e->path, strerror(errno));
}

void events_close(struct events *e)
{
    if (e->file)
        fclose(e->file);
    free(e->path);
    *e = (struct events){0};
}
