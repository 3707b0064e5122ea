// As prologue.h: nothing where CCCL has none.
#if __has_include_next(<cuda/std/__cccl/epilogue.h>)
#include_next <cuda/std/__cccl/epilogue.h>
#endif
