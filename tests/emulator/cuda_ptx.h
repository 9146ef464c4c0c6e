// PTX instructions that kernels have in `asm`, which emulator.py turns into calls of these.
//
// What lanes hold of matrices is as NVIDIA's "Parallel Thread Execution ISA" lays it down.

#pragma once

#define __cvta_generic_to_shared(address) reinterpret_cast<size_t>(address)

inline unsigned emulator_of_lane(unsigned value, int lane) {
  return emulator_read_lane(__LINE__, ~0u, value, lane);
}

inline const char* emulator_line(size_t address, int lane) {
  return reinterpret_cast<const char*>(emulator_read_lane(__LINE__, ~0u, address, lane));
}

// Of each matrix a lane gets 4 bytes of line `lane / 4`.
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned& a, unsigned& b, unsigned& c,
                                                         unsigned& d, size_t address) {
  unsigned* const to[] = {&a, &b, &c, &d};
  for (int matrix = 0; matrix < 4; ++matrix) {
    const char* line = emulator_line(address, matrix * 8 + emulator_lane / 4);
    memcpy(to[matrix], line + emulator_lane % 4 * 4, 4);
  }
}

// Of each matrix a lane gets two numbers, one below the other, of column `lane / 4`.
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned& a, unsigned& b,
                                                               unsigned& c, unsigned& d,
                                                               size_t address) {
  unsigned* const to[] = {&a, &b, &c, &d};
  for (int matrix = 0; matrix < 4; ++matrix)
    for (int half = 0; half < 2; ++half) {
      const char* line = emulator_line(address, matrix * 8 + emulator_lane % 4 * 2 + half);
      memcpy(reinterpret_cast<char*>(to[matrix]) + 2 * half, line + emulator_lane / 4 * 2, 2);
    }
}

struct EmulatorHalf {
  static constexpr int count = 2;
  static float number(unsigned bits, int place) {
    __half_raw raw;
    raw.x = static_cast<unsigned short>(bits >> 16 * place);
    return static_cast<float>(half(raw));
  }
};

struct EmulatorBfloat16 {
  static constexpr int count = 2;
  static float number(unsigned bits, int place) {
    return emulator_bits<float>(bits >> 16 * place << 16);
  }
};

struct EmulatorTf32 {
  static constexpr int count = 1;
  static float number(unsigned bits, int) { return emulator_bits<float>(bits & ~0x1fffu); }
};

// Rows `lane / 4` and 8 more of the left operand and of the result, columns `lane / 4` of the right
// one; a register has `count` numbers along the sum, of which lane `lane % 4` has its share.
template <class Format>
void emulator_multiply(float* const (&sums)[4], const unsigned (&left)[4],
                       const unsigned (&right)[2]) {
  float total[4] = {*sums[0], *sums[1], *sums[2], *sums[3]};
  for (int lane = 0; lane < 4; ++lane) {
    unsigned rows[4], columns[2][2];
    for (int i = 0; i < 4; ++i) rows[i] = emulator_of_lane(left[i], emulator_lane / 4 * 4 + lane);
    for (int column = 0; column < 2; ++column)
      for (int i = 0; i < 2; ++i)
        columns[column][i] =
            emulator_of_lane(right[i], (emulator_lane % 4 * 2 + column) * 4 + lane);
    for (int row = 0; row < 2; ++row)
      for (int column = 0; column < 2; ++column)
        for (int i = 0; i < 2; ++i)  // the first and the second half of the sum
          for (int place = 0; place < Format::count; ++place)
            total[row * 2 + column] += Format::number(rows[i * 2 + row], place) *
                                       Format::number(columns[column][i], place);
  }
  for (int i = 0; i < 4; ++i) *sums[i] = total[i];
}

#define EMULATOR_MULTIPLY(name, format)                                                       \
  inline void name(float& s, float& t, float& u, float& v, unsigned a, unsigned b, unsigned c, \
                   unsigned d, unsigned e, unsigned f) {                                      \
    emulator_multiply<format>({&s, &t, &u, &v}, {a, b, c, d}, {e, f});                        \
  }
EMULATOR_MULTIPLY(ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, EmulatorHalf)
EMULATOR_MULTIPLY(ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, EmulatorBfloat16)
EMULATOR_MULTIPLY(ptx_mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, EmulatorTf32)
#undef EMULATOR_MULTIPLY

// To the nearest of ten bits of a mantissa; of two as near, the one farther from zero.
inline void ptx_cvt_rna_tf32_f32(unsigned& to, float from) {
  const unsigned bits = emulator_bits<unsigned>(from);
  to = (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

inline float emulator_flushed(float x) {
  return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x;
}

inline void ptx_ex2_approx_ftz_f32(float& to, float from) {
  to = emulator_flushed(std::exp2(emulator_flushed(from)));
}

inline void ptx_rcp_approx_ftz_f32(float& to, float from) {
  to = emulator_flushed(1.0f / emulator_flushed(from));
}
