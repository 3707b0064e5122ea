// What most files of the runtime include. g++ parses it once for all of them (ep_lib/jit/gxx.py), so it holds nothing
// that a file could do without an #include of its own.
#pragma once

#include <string.h>

#include <algorithm>

#include "checker.hpp"
