# Random numbers for offsets, block sizes and directions: reproducible from a seed, in a few
# nanoseconds.

from libc.math cimport exp, expm1, log, log1p
from libc.stdint cimport uint64_t


cdef struct Random:             # xoshiro256+ (Blackman and Vigna), public domain algorithm
    uint64_t state[4]


cdef struct Zipf:
    # Zipf's law by rejection-inversion (Hoermann and Derflinger, 1996).
    uint64_t count              # of the ranks; 0: uniform
    double theta
    double integral_first
    double integral_last
    double cut


cdef inline uint64_t mix(uint64_t x) noexcept nogil:
    """A bijection that spreads its argument's bits (splitmix64's finaliser)."""
    x = (x ^ (x >> 30)) * <uint64_t> 0xbf58476d1ce4e5b9
    x = (x ^ (x >> 27)) * <uint64_t> 0x94d049bb133111eb
    return x ^ (x >> 31)


cdef inline void seed_random(Random *random, uint64_t seed) noexcept nogil:
    cdef int i
    for i in range(4):
        seed += <uint64_t> 0x9e3779b97f4a7c15
        random.state[i] = mix(seed)


cdef inline uint64_t next_random(Random *random) noexcept nogil:
    cdef uint64_t *s = random.state
    cdef uint64_t result = s[0] + s[3]
    cdef uint64_t shifted = s[1] << 17
    s[2] ^= s[0]
    s[3] ^= s[1]
    s[1] ^= s[2]
    s[0] ^= s[3]
    s[2] ^= shifted
    s[3] = (s[3] << 45) | (s[3] >> 19)
    return result


cdef inline double next_double(Random *random) noexcept nogil:
    """Uniform in [0, 1)."""
    return <double> (next_random(random) >> 11) * (1.0 / 9007199254740992.0)


cdef inline uint64_t below(Random *random, uint64_t limit) noexcept nogil:
    """Uniform in [0, limit): the bias is limit / 2^53 at most, so none that could be seen."""
    return <uint64_t> (next_double(random) * <double> limit)


cdef inline double _ratio(double x) noexcept nogil:
    return expm1(x) / x if x > 1e-8 or x < -1e-8 else 1.0 + x / 2


cdef inline double _integral(double theta, double x) noexcept nogil:
    cdef double logarithm = log(x)
    return _ratio((1.0 - theta) * logarithm) * logarithm


cdef inline double _inverse(double theta, double x) noexcept nogil:
    cdef double t = max(x * (1.0 - theta), -1.0)
    return exp((log1p(t) / t if t > 1e-8 or t < -1e-8 else 1.0 - t / 2) * x)


cdef inline void init_zipf(Zipf *zipf, uint64_t count, double theta) noexcept nogil:
    zipf.count, zipf.theta = count, theta
    zipf.integral_first = _integral(theta, 1.5) - 1.0
    zipf.integral_last = _integral(theta, <double> count + 0.5)
    zipf.cut = 2.0 - _inverse(theta, _integral(theta, 2.5) - exp(-theta * log(2.0)))


cdef inline uint64_t next_zipf(const Zipf *zipf, Random *random) noexcept nogil:
    """A rank in [0, count): rank r with probability proportional to 1 / (r + 1)^theta."""
    cdef double u, x
    cdef uint64_t rank
    while True:
        u = zipf.integral_last + next_double(random) * (zipf.integral_first - zipf.integral_last)
        x = _inverse(zipf.theta, u)
        rank = <uint64_t> (x + 0.5)
        rank = min(max(rank, <uint64_t> 1), zipf.count)
        if (<double> rank - x <= zipf.cut
                or u >= _integral(zipf.theta, <double> rank + 0.5)
                - exp(-zipf.theta * log(<double> rank))):
            return rank - 1
