#include "fibers.h"

#include "internal.h"

#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES (256 << 10) /* ASan's frames are wide */
#else
#define STACK_BYTES (64 << 10)
#endif
#define PAGE_BYTES 4096

struct fiber {
    void *saved;      /* its stack pointer while another runs */
    void *fake_stack; /* ASan's */
    char *stack;
    size_t stack_bytes;
    struct fiber *next; /* among those not in use */
#ifndef __x86_64__
    ucontext_t context;
#endif
};

static struct fiber host, *unused;

#ifdef __x86_64__
/* Saves what a call preserves, and goes on where `to` has saved the same. The control words of
 * floating point are the same in all fibers. */
extern "C" void emulator_switch_stack(void **from, void *to);
asm(".text\n"
    ".type emulator_switch_stack, @function\n"
    "emulator_switch_stack:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size emulator_switch_stack, . - emulator_switch_stack\n");

static void prepare(struct fiber *f, void (*entry)())
{
    void **top = (void **)(f->stack + f->stack_bytes);
    *--top = NULL; /* where entry would return to */
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->saved = top;
}

static void switch_stack(struct fiber *from, struct fiber *to)
{
    emulator_switch_stack(&from->saved, to->saved);
}
#else
static void prepare(struct fiber *f, void (*entry)())
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = f->stack_bytes;
    f->context.uc_link = NULL;
    makecontext(&f->context, entry, 0);
}

static void switch_stack(struct fiber *from, struct fiber *to)
{
    swapcontext(&from->context, &to->context);
}
#endif

/* The page below each stack is closed: a stack that is too small crashes there. */
static struct fiber *create()
{
    struct fiber *f = new fiber();
    char *memory = (char *)mmap(NULL, STACK_BYTES + PAGE_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, PAGE_BYTES, PROT_NONE) != 0)
        emulator_fault("no memory for a thread's stack");
    f->stack = memory + PAGE_BYTES;
    f->stack_bytes = STACK_BYTES;
    return f;
}

struct fiber *fiber_take(void (*entry)())
{
    struct fiber *f = unused;
    if (f)
        unused = f->next;
    else
        f = create();
    prepare(f, entry);
    return f;
}

void fiber_give_back(struct fiber *f)
{
    f->next = unused;
    unused = f;
}

#ifdef __SANITIZE_ADDRESS__
static bool host_is_known;

__attribute__((no_sanitize("address"))) void fiber_switch(struct fiber *from, struct fiber *to,
                                                          bool ends)
{
    struct fiber *a = from ? from : &host, *b = to ? to : &host;
    __sanitizer_start_switch_fiber(ends ? NULL : &a->fake_stack, b->stack, b->stack_bytes);
    switch_stack(a, b);
    __sanitizer_finish_switch_fiber(a->fake_stack, NULL, NULL);
}

/* The first fiber of all is begun by the host, whose stack it so gets to know. */
__attribute__((no_sanitize("address"))) void fiber_begin()
{
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(NULL, &bottom, &bytes);
    if (host_is_known)
        return;
    host.stack = (char *)bottom;
    host.stack_bytes = bytes;
    host_is_known = true;
}
#else
void fiber_switch(struct fiber *from, struct fiber *to, bool ends)
{
    (void)ends;
    switch_stack(from ? from : &host, to ? to : &host);
}

void fiber_begin()
{
}
#endif
