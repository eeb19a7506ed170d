// Rows of logits, which are bfloat16 as the model's are or float32 as adjusted ones are: loads, order and maxima.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "simd.h"

namespace baton {

constexpr int64_t kPiece = 1024;  // tokens whose weights are summed in float32; the sums of pieces are float64

inline float to_float(float value) { return value; }
inline bf16 bits_of(bf16 logit) { return logit; }
inline uint32_t bits_of(float logit) {
  uint32_t bits;
  std::memcpy(&bits, &logit, sizeof(bits));
  return bits;
}
inline void from_bits(uint32_t bits, float* logit) { std::memcpy(logit, &bits, sizeof(bits)); }
inline void from_bits(bf16 bits, float* logit) { *logit = to_float(bits); }

inline Floats load_vector(const float* from) { return load(from); }
inline Floats load_vector(const bf16* from) { return load_bf16(from); }

// Up to kFloats logits; the lanes beyond `count` are -inf.
template <class Logit>
Floats load_logits(const Logit* from, int64_t count) {
  if (count >= kFloats) return load_vector(from);
  float padded[kFloats];
  for (int lane = 0; lane < kFloats; ++lane) padded[lane] = lane < count ? to_float(from[lane]) : -kInfinity;
  return load(padded);
}

// The largest logit of a row that has a token to draw. NaN for a row that has none, since a logit is NaN or inf, or all
// are -inf. It is found in the bits: as signed integers numbers above 0 are in their order and NaN are beyond inf, as
// unsigned ones those below 0 are in descending order and NaN are beyond -inf.
template <class Logit>
float peak_of(const Logit* logits, int64_t vocab_size) {
  using Bits = decltype(bits_of(Logit{}));
  using Signed = std::make_signed_t<Bits>;
  constexpr int kBits = 8 * sizeof(Bits);
  constexpr Bits kInf = static_cast<Bits>(0x7f800000u >> (32 - kBits));
  constexpr Bits kMinusInf = static_cast<Bits>(0xff800000u >> (32 - kBits));
  Signed largest = std::numeric_limits<Signed>::min();
  Bits last = 0;
  for (int64_t i = 0; i < vocab_size; ++i) {
    const Bits bits = bits_of(logits[i]);
    const Signed number = static_cast<Signed>(bits);
    largest = number > largest ? number : largest;
    last = bits > last ? bits : last;
  }
  Bits peak = static_cast<Bits>(largest);
  if (largest < 0) {  // all are below 0, or are -0
    peak = std::numeric_limits<Bits>::max();
    for (int64_t i = 0; i < vocab_size; ++i) {
      const Bits bits = bits_of(logits[i]);
      peak = bits < peak ? bits : peak;
    }
  }
  if (last > kMinusInf || peak == kMinusInf || (largest >= 0 && peak >= kInf))
    return std::numeric_limits<float>::quiet_NaN();
  float logit;
  from_bits(peak, &logit);
  return logit;
}

// Calls body with the logits as what they are.
template <class Body>
void with_logits(const void* logits, int are_float32, const Body& body) {
  if (are_float32)
    body(static_cast<const float*>(logits));
  else
    body(static_cast<const bf16*>(logits));
}

}  // namespace baton
