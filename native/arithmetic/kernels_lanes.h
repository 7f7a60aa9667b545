// How each dtype is loaded, computed with and stored, and what is computed.  Part of
// kernels_template.h.
#pragma once

#include "arithmetic/kernels_vector.h"

namespace rabit {
namespace {

constexpr int kUnroll = 4;

template <class T>
struct Plain {
  using Scalar = T;
  static constexpr bool kIsFloat = static_cast<T>(0.5) != 0;
  static constexpr int kBytes = sizeof(T);
  static constexpr int kCount = RABIT_VECTOR_BYTES / sizeof(T);
  typedef T Vector __attribute__((vector_size(RABIT_VECTOR_BYTES)));
  static RABIT_INLINE Vector Load(const std::byte* from) {
    Vector value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
  }
  static RABIT_INLINE void Store(Vector value, std::byte* to) {
    __builtin_memcpy(to, &value, sizeof(value));
  }
};

template <bool kIsBfloat16>
struct Half {
  using Scalar = float;
  static constexpr bool kIsFloat = true;
  static constexpr int kBytes = 2;
  static constexpr int kCount = kLanes;
  using Vector = FloatVector;
  static RABIT_INLINE Vector Load(const std::byte* from) {
    HalfVector half;
    __builtin_memcpy(&half, from, sizeof(half));
    return kIsBfloat16 ? WidenBfloat16(half) : WidenFloat16(half);
  }
  static RABIT_INLINE void Store(Vector value, std::byte* to) {
    const HalfVector half = kIsBfloat16 ? NarrowBfloat16(value) : NarrowFloat16(value);
    __builtin_memcpy(to, &half, sizeof(half));
  }
};

// ---- Operations ------------------------------------------------------------------------------

struct Sum {
  template <class V>
  static RABIT_INLINE V Apply(V a, V b) {
    return a + b;
  }
};
struct Product {
  template <class V>
  static RABIT_INLINE V Apply(V a, V b) {
    return a * b;
  }
};
// A NaN on either side wins, as in NumPy; of two equal values (-0 and +0) the first is kept.
struct Min {
  template <class V>
  static RABIT_INLINE V Apply(V a, V b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};
struct Max {
  template <class V>
  static RABIT_INLINE V Apply(V a, V b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};
struct And {
  template <class V>
  static RABIT_INLINE V Apply(V a, V b) {
    return a & b;
  }
};
struct Or {
  template <class V>
  static RABIT_INLINE V Apply(V a, V b) {
    return a | b;
  }
};
struct Xor {
  template <class V>
  static RABIT_INLINE V Apply(V a, V b) {
    return a ^ b;
  }
};

// Which of two NaNs an addition keeps depends on the operand order that the compiler picks, so a
// NaN result is always the same quiet NaN.
template <class E>
RABIT_INLINE typename E::Vector Canonical(typename E::Vector value) {
  if constexpr (E::kIsFloat) {
    const typename E::Vector nan =
        typename E::Vector{} + static_cast<typename E::Scalar>(__builtin_nan(""));
    return value == value ? value : nan;
  } else {
    return value;
  }
}

// A dtype as the reductions see it.
template <class E>
struct Lanes : E {
  static constexpr bool kNeedsHeadroom = false;
  template <class Op>
  static RABIT_INLINE typename E::Vector Apply(typename E::Vector a, typename E::Vector b) {
    return Op::Apply(a, b);
  }
  static RABIT_INLINE typename E::Vector Times(typename E::Vector a, typename E::Scalar b) {
    return a * b;
  }
  static RABIT_INLINE typename E::Vector Over(typename E::Vector a, typename E::Scalar b) {
    return a / b;
  }
  static RABIT_INLINE void StoreResult(typename E::Vector value, std::byte* to) {
    E::Store(Canonical<E>(value), to);
  }
};

// bfloat16 as the reductions see it: the upper halves of 32-bit words are the odd elements, the
// lower ones the even elements, each one shift or mask away from a float.  That needs no
// instruction that moves values between lanes, of which widening and narrowing take one for each
// vector.
struct BfloatPairs {
  using Word = Half<true>;
  using Scalar = float;
  static constexpr bool kNeedsHeadroom = true;  // float32 reaches no further
  static constexpr int kBytes = 2;
  static constexpr int kCount = 2 * kLanes;
  struct Vector {
    FloatVector even;
    FloatVector odd;
  };
  static RABIT_INLINE Vector Load(const std::byte* from) {
    WordVector words;
    __builtin_memcpy(&words, from, sizeof(words));
    return {BitsAs<FloatVector>(words << 16), BitsAs<FloatVector>(words & 0xffff0000u)};
  }
  template <class Op>
  static RABIT_INLINE Vector Apply(Vector a, Vector b) {
    return {Op::Apply(a.even, b.even), Op::Apply(a.odd, b.odd)};
  }
  static RABIT_INLINE Vector Times(Vector a, float b) { return {a.even * b, a.odd * b}; }
  static RABIT_INLINE Vector Over(Vector a, float b) { return {a.even / b, a.odd / b}; }
  static RABIT_INLINE void StoreResult(Vector value, std::byte* to) {
    const WordVector even = RoundToBfloat16(Canonical<Word>(value.even));
    const WordVector odd = RoundToBfloat16(Canonical<Word>(value.odd));
    const WordVector words = (odd & 0xffff0000u) | (even >> 16);
    __builtin_memcpy(to, &words, sizeof(words));
  }
};

}  // namespace
}  // namespace rabit
