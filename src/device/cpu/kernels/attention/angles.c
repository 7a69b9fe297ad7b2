#include "device/cpu/kernels/attention/angles.h"

#include <math.h>

/* sin and cos on [-pi/4, pi/4]: Taylor series to x^15 and x^16, error below 1e-16. */
static double sin_small(double x)
{
    double z = x * x;
    double p = -1.0 / 1307674368000.0;
    p = p * z + 1.0 / 6227020800.0;
    p = p * z - 1.0 / 39916800.0;
    p = p * z + 1.0 / 362880.0;
    p = p * z - 1.0 / 5040.0;
    p = p * z + 1.0 / 120.0;
    p = p * z - 1.0 / 6.0;
    return x + x * z * p;
}

static double cos_small(double x)
{
    double z = x * x;
    double p = 1.0 / 20922789888000.0;
    p = p * z - 1.0 / 87178291200.0;
    p = p * z + 1.0 / 479001600.0;
    p = p * z - 1.0 / 3628800.0;
    p = p * z + 1.0 / 40320.0;
    p = p * z - 1.0 / 720.0;
    p = p * z + 1.0 / 24.0;
    p = p * z - 0.5;
    return 1.0 + z * p;
}

void qn_rope_angles(int32_t position, const float *frequencies, int64_t half, float factor, float *out)
{
    /* pi/2 in two parts (Cody and Waite): the first has 33 bits, so its product with the quadrant number is
     * exact. */
    const double high = 1.57079632673412561417e+00, low = 6.07710050650619224932e-11;
    for (int64_t i = 0; i < half; i++) {
        float angle = (float)position * frequencies[i];
        double x = angle, n = floor(x * 0.63661977236758134308 + 0.5);
        double r = (x - n * high) - n * low;
        double s = sin_small(r), c = cos_small(r);
        int quadrant = (int)((int64_t)n & 3);
        double cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
        double sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
        out[i] = factor * (float)cosine;
        out[half + i] = factor * (float)sine;
    }
}
