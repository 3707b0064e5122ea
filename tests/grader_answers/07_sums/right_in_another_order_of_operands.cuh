// Addition and multiplication commute, rounded or not.
// EXERCISE-BEGIN 1
return __fadd_rn(__fmul_rn(value, weight), sum);
// EXERCISE-END 1
// EXERCISE-BEGIN 3
const unsigned a = __bfloat16_as_ushort(__float2bfloat16_rn(low)), b = __bfloat16_as_ushort(__float2bfloat16_rn(high));
return static_cast<int>(b << 16 | a);
// EXERCISE-END 3
