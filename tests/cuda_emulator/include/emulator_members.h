/* Which words of a struct are pointers: its members, found by the compiler, so that nobody lists
 * them and padding is never looked at. For structs as kernels take them: aggregates of at most 16
 * members without base classes and bit-fields. */
#ifndef ZF_CUDA_EMULATOR_EMULATOR_MEMBERS_H
#define ZF_CUDA_EMULATOR_EMULATOR_MEMBERS_H

#include <stddef.h>
#include <type_traits>
#include <utility>

/* Stands for an initialiser of any type. */
struct emulator_any {
    template <typename T> operator T() const;
};
template <size_t> using emulator_any_of = emulator_any;

/* Whether T{any, ..., any} compiles: an aggregate takes as many initialisers as it has members, but
 * as many for an array as that has elements. */
template <typename T, size_t... i, typename = decltype(T{emulator_any_of<i>()...})>
constexpr bool emulator_takes(std::index_sequence<i...>)
{
    return true;
}
template <typename T> constexpr bool emulator_takes(...)
{
    return false;
}
template <typename T, size_t n = 0> constexpr size_t emulator_initialisers()
{
    if constexpr (emulator_takes<T>(std::make_index_sequence<n + 1>()))
        return emulator_initialisers<T, n + 1>();
    else
        return n;
}

/* The same with braces around one of them, which may then be a whole array. */
template <typename T, size_t... i, size_t... j,
          typename = decltype(T{
              emulator_any_of<i>()..., {emulator_any()}, emulator_any_of<j>()...})>
constexpr bool emulator_takes_braces(std::index_sequence<i...>, std::index_sequence<j...>)
{
    return true;
}
template <typename T> constexpr bool emulator_takes_braces(...)
{
    return false;
}
template <typename T, size_t before, size_t after = 0>
constexpr size_t emulator_initialisers_behind()
{
    if constexpr (emulator_takes_braces<T>(std::make_index_sequence<before>(),
                                           std::make_index_sequence<after + 1>()))
        return emulator_initialisers_behind<T, before, after + 1>();
    else
        return after;
}

/* Members, from the one on whose first initialiser has this number. */
template <typename T, size_t before = 0> constexpr size_t emulator_members()
{
    constexpr size_t all = emulator_initialisers<T>();
    if constexpr (before == all)
        return 0;
    else
        return 1 + emulator_members<T, all - emulator_initialisers_behind<T, before>()>();
}

template <typename F, typename... M>
static inline void emulator_call(const F &f, const M &...members)
{
    (f(members), ...);
}

/* f(member) for each member. */
template <typename T, typename F> static inline void emulator_each_member(const T &s, const F &f)
{
    static_assert(std::is_aggregate<T>::value, "kernels take plain structs");
    constexpr size_t n = emulator_members<T>();
    static_assert(n <= 16, "a struct of more members than emulator_each_member knows");
#define EMULATOR_MEMBERS(count, ...)                                                               \
    if constexpr (n == count) {                                                                    \
        const auto &[__VA_ARGS__] = s;                                                             \
        emulator_call(f, __VA_ARGS__);                                                             \
    }
    EMULATOR_MEMBERS(1, a)
    EMULATOR_MEMBERS(2, a, b)
    EMULATOR_MEMBERS(3, a, b, c)
    EMULATOR_MEMBERS(4, a, b, c, d)
    EMULATOR_MEMBERS(5, a, b, c, d, e)
    EMULATOR_MEMBERS(6, a, b, c, d, e, g)
    EMULATOR_MEMBERS(7, a, b, c, d, e, g, h)
    EMULATOR_MEMBERS(8, a, b, c, d, e, g, h, i)
    EMULATOR_MEMBERS(9, a, b, c, d, e, g, h, i, j)
    EMULATOR_MEMBERS(10, a, b, c, d, e, g, h, i, j, k)
    EMULATOR_MEMBERS(11, a, b, c, d, e, g, h, i, j, k, l)
    EMULATOR_MEMBERS(12, a, b, c, d, e, g, h, i, j, k, l, m)
    EMULATOR_MEMBERS(13, a, b, c, d, e, g, h, i, j, k, l, m, o)
    EMULATOR_MEMBERS(14, a, b, c, d, e, g, h, i, j, k, l, m, o, p)
    EMULATOR_MEMBERS(15, a, b, c, d, e, g, h, i, j, k, l, m, o, p, q)
    EMULATOR_MEMBERS(16, a, b, c, d, e, g, h, i, j, k, l, m, o, p, q, r)
#undef EMULATOR_MEMBERS
}

/* f(pointer) for each pointer that a value is or holds. */
template <typename T, typename F>
static inline void emulator_each_pointer(const T &value, const F &f)
{
    if constexpr (std::is_pointer<T>::value)
        f((const void *)value);
    else if constexpr (std::is_array<T>::value)
        for (const auto &element : value)
            emulator_each_pointer(element, f);
    else if constexpr (std::is_class<T>::value)
        emulator_each_member(value, [&](const auto &member) { emulator_each_pointer(member, f); });
    else
        (void)value, (void)f;
}

#endif
