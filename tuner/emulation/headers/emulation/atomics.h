// Atomic functions on global and shared memory. All are sequentially consistent here; on the GPU they are relaxed, so
// the race checker still asks for the __threadfence that publishes other data through them.
#pragma once

#include "interface.h"

namespace emulation {
template <class T, class Change>
MNT_UNCHECKED inline T read_modify_write(T* address, Change change, const char* file, int line) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "atomics work on 2, 4 or 8 bytes");
    mnt_emulation_poll();
    mnt_emulation_atomic_access(address, sizeof(T), true, file, line);
    T old, changed;
    __atomic_load(address, &old, __ATOMIC_SEQ_CST);
    do changed = change(old);
    while (!__atomic_compare_exchange(address, &old, &changed, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}
// Makes the value parameter of the templates below follow the address: atomicAdd(unsigned*, 1) is allowed.
template <class T>
struct Same {
    using type = T;
};
}  // namespace emulation

#define MNT_ATOMIC(NAME, EXPRESSION)                                                                                   \
    template <class T>                                                                                                 \
    inline T NAME(T* address, typename emulation::Same<T>::type value, MNT_SITE) {                                     \
        return emulation::read_modify_write(address, [&](T old) { return static_cast<T>(EXPRESSION); }, file_, line_); \
    }
MNT_ATOMIC(atomicAdd, old + value)
MNT_ATOMIC(atomicSub, old - value)
MNT_ATOMIC(atomicExch, ((void)old, value))
MNT_ATOMIC(atomicMax, old < value ? value : old)
MNT_ATOMIC(atomicMin, value < old ? value : old)
MNT_ATOMIC(atomicAnd, old& value)
MNT_ATOMIC(atomicOr, old | value)
MNT_ATOMIC(atomicXor, old ^ value)
MNT_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
MNT_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)

template <class T>
inline T atomicCAS(T* address, typename emulation::Same<T>::type expected, typename emulation::Same<T>::type value,
                   MNT_SITE) {
    return emulation::read_modify_write(address, [&](T old) { return old == expected ? value : old; }, file_, line_);
}
