"""Variables of kernels, declared where they are first used."""

from __future__ import annotations

import textwrap

import pytest

from babytriton.runtime.text.declarations import declared_late

# A body of a kernel, and what becomes of it.
CASES = {
    "a number is declared with its first value": (
        """
          float total;
          int other;
          other = 3;
          total = other;
        }
        """,
        """
          int other = 3;
          float total = other;
        }
        """,
    ),
    "one whose first value is of its own is not": (
        """
          float total;
          if (thread == 0) {
            total = 1.0f;
          }
          x[thread] = total;
        }
        """,
        """
          float total;
          if (thread == 0) {
            total = 1.0f;
          }
          x[thread] = total;
        }
        """,
    ),
    "a vector goes into the loop that loads it": (
        """
          alignas(16) float x_vector[4];
          alignas(16) half h_vector[4];
          #pragma unroll
          for (int step = 0; step < 4; ++step) {
            *(float4*)x_vector = *(const float4*)(x + step * 4);
            *(uint2*)h_vector = *(const uint2*)(h + step * 4);
            y[step] = x_vector[0] + h_vector[0];
          }
        }
        """,
        """
          #pragma unroll
          for (int step = 0; step < 4; ++step) {
            alignas(16) float x_vector[4];
            *(float4*)x_vector = *(const float4*)(x + step * 4);
            alignas(16) half h_vector[4];
            *(uint2*)h_vector = *(const uint2*)(h + step * 4);
            y[step] = x_vector[0] + h_vector[0];
          }
        }
        """,
    ),
    "but not if a part of it stays from turn to turn": (
        """
          alignas(16) float x_vector[8];
          for (int step = 0; step < 4; ++step) {
            *(float4*)x_vector = *(const float4*)(x + step * 4);
            y[step] = x_vector[7];
          }
        }
        """,
        """
          alignas(16) float x_vector[8];
          for (int step = 0; step < 4; ++step) {
            *(float4*)x_vector = *(const float4*)(x + step * 4);
            y[step] = x_vector[7];
          }
        }
        """,
    ),
    "a loop over all lanes gives all of it": (
        """
          alignas(16) float part[4];
          alignas(16) float other[4];
          for (int step = 0; step < 9; ++step) {
            for (int lane = 0; lane < 4; ++lane) {
              part[lane] = x[lane];
              other[lane] = part[lane] + part[0];
            }
            *(float4*)(y + step) = *(float4*)other;
          }
        }
        """,
        """
          alignas(16) float part[4];
          for (int step = 0; step < 9; ++step) {
            alignas(16) float other[4];
            for (int lane = 0; lane < 4; ++lane) {
              part[lane] = x[lane];
              other[lane] = part[lane] + part[0];
            }
            *(float4*)(y + step) = *(float4*)other;
          }
        }
        """,
    ),
    "each way has its own": (
        """
          float both;
          float one;
          for (int step = 0; step < 9; ++step) {
            if (step < 4) {
              one = x[step];
              both = one * one;
            } else {
              both = 0.0f;
            }
          }
        }
        """,
        """
          for (int step = 0; step < 9; ++step) {
            if (step < 4) {
              float one = x[step];
              float both = one * one;
            } else {
              float both = 0.0f;
            }
          }
        }
        """,
    ),
    "what a loop carries on stays outside": (
        """
          float total;
          float last;
          for (int step = 0; step < 9; ++step) {
            if (step > 0) {
              total = last;
            }
            last = x[step];
            y[step] = total;
          }
        }
        """,
        """
          float total;
          float last;
          for (int step = 0; step < 9; ++step) {
            if (step > 0) {
              total = last;
            }
            last = x[step];
            y[step] = total;
          }
        }
        """,
    ),
    "two blocks have one each": (
        """
          alignas(16) float x_vector[4];
          for (int step = 0; step < 4; ++step) {
            *(float4*)x_vector = *(const float4*)(x + step * 4);
            y[step] = x_vector[0];
          }
          if (thread < 3) {
            *(float4*)x_vector = *(const float4*)(x + 16);
            y[4] = x_vector[0];
          }
        }
        """,
        """
          for (int step = 0; step < 4; ++step) {
            alignas(16) float x_vector[4];
            *(float4*)x_vector = *(const float4*)(x + step * 4);
            y[step] = x_vector[0];
          }
          if (thread < 3) {
            alignas(16) float x_vector[4];
            *(float4*)x_vector = *(const float4*)(x + 16);
            y[4] = x_vector[0];
          }
        }
        """,
    ),
    "declarations in blocks go to the first use there": (
        """
          for (int step = 0; step < 4; ++step) {
            float sum;
            float y[4];
            for (int lane = 0; lane < 4; ++lane) {
              y[lane] = x[lane];
            }
            sum = 0.0f;
            for (int lane = 0; lane < 4; ++lane) {
              sum += y[lane];
            }
            x[step] = sum;
          }
        }
        """,
        """
          for (int step = 0; step < 4; ++step) {
            float y[4];
            for (int lane = 0; lane < 4; ++lane) {
              y[lane] = x[lane];
            }
            float sum = 0.0f;
            for (int lane = 0; lane < 4; ++lane) {
              sum += y[lane];
            }
            x[step] = sum;
          }
        }
        """,
    ),
    "names have numbers where they must": (
        """
          float sum;
          for (int step = 0; step < 4; ++step) {
            int64_t row = step * 8;
            alignas(16) float x_vector[4];
            sum += x[row] + x_vector[0];
          }
          for (int step = 0; step < 4; ++step) {
            int64_t row_1 = step * 16;
            alignas(16) float x_vector_1[4];
            int64_t step_1 = row_1;
            float sum_1 = x[row_1] + x_vector_1[0];
            float float_1 = sum_1;
            int64_t y_1 = step_1;
            sum += float_1 + y_1;
          }
        }
        """,
        """
          float sum;
          for (int step = 0; step < 4; ++step) {
            int64_t row = step * 8;
            alignas(16) float x_vector[4];
            sum += x[row] + x_vector[0];
          }
          for (int step = 0; step < 4; ++step) {
            int64_t row = step * 16;
            int64_t step_1 = row;
            alignas(16) float x_vector[4];
            float sum_1 = x[row] + x_vector[0];
            float float_1 = sum_1;
            int64_t y_1 = step_1;
            sum += float_1 + y_1;
          }
        }
        """,
    ),
    "shared memory and other types stay": (
        """
          __shared__ alignas(16) float sums[8];
          nvcuda::wmma::fragment<int> a[2];
          float unused;
          for (int step = 0; step < 9; ++step) {
            sums[step] = a[step];
          }
        }
        """,
        """
          __shared__ alignas(16) float sums[8];
          nvcuda::wmma::fragment<int> a[2];
          for (int step = 0; step < 9; ++step) {
            sums[step] = a[step];
          }
        }
        """,
    ),
}


def lines(text: str) -> list[str]:
    return textwrap.dedent(text).strip("\n").rstrip().splitlines()


@pytest.mark.parametrize("case", CASES)
def test_declarations(case: str) -> None:
    before, after = (lines(text) for text in CASES[case])
    assert declared_late(before, {"x", "y"}) == after
    assert declared_late(after, {"x", "y"}) == after


@pytest.mark.parametrize(
    "text", ["float x;", "  float x;\n  if (y) {\n}", '  int x;\n  asm("a");\n}']
)
def test_what_is_not_understood_stays(text: str) -> None:
    assert declared_late(text.splitlines()) == text.splitlines()
