// Exports one kernel from its shared library: an entry that takes an array of pointers to arguments (as cuLaunchKernel
// does), a description of the parameters, and a marker inside the library's static shared memory.
#pragma once

#include <type_traits>

#include "interface.h"

// kind: p pointer, f floating point, i signed, u unsigned, x anything else; read by tuner/emulation/module.py.
struct MntParameter {
    unsigned bytes;
    char kind;
};

namespace emulation {

template <class T>
constexpr char parameter_kind() {
    if (std::is_pointer<T>::value) return 'p';
    if (std::is_floating_point<T>::value) return 'f';
    if (std::is_integral<T>::value) return std::is_signed<T>::value ? 'i' : 'u';
    return 'x';
}

template <size_t... Index>
struct Indices {};
template <size_t N, size_t... Index>
struct IndicesUpTo : IndicesUpTo<N - 1, N - 1, Index...> {};
template <size_t... Index>
struct IndicesUpTo<0, Index...> {
    using type = Indices<Index...>;
};

template <class... P, size_t... Index>
MNT_UNCHECKED inline void call(void (*kernel)(P...), void** arguments, Indices<Index...>) {
    kernel(*static_cast<std::remove_const_t<P>*>(arguments[Index])...);
}
template <class... P>
MNT_UNCHECKED inline void invoke(void (*kernel)(P...), void** arguments) {
    call(kernel, arguments, typename IndicesUpTo<sizeof...(P)>::type());
}

template <class... P>
inline const MntParameter* parameters(void (*)(P...), int* count) {
    static const MntParameter described[] = {MntParameter{sizeof(P), parameter_kind<P>()}..., MntParameter{0, 0}};
    *count = sizeof...(P);
    return described;
}

}  // namespace emulation

#define MNT_EXPORTED extern "C" __attribute__((visibility("default"))) MNT_UNCHECKED
#define MNT_EXPORT_KERNEL(NAME)                                                                                       \
    static thread_local char mnt_static_shared_marker;                                                                \
    MNT_EXPORTED void mnt_kernel_entry(void** arguments) { emulation::invoke(NAME, arguments); }                      \
    MNT_EXPORTED const MntParameter* mnt_kernel_parameters(int* count) { return emulation::parameters(NAME, count); } \
    MNT_EXPORTED void* mnt_kernel_static_shared() { return &mnt_static_shared_marker; }                               \
    /* A failed assert() in a kernel is a report, not the end of the process. */                                      \
    extern "C" void __assert_fail(const char* text, const char* file, unsigned line, const char*) noexcept {          \
        mnt_emulation_trap(text, file, static_cast<int>(line));                                                       \
    }
