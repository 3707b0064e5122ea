// Headers that most files of the runtime use. g++ parses this file once for all of them (ep_lib/jit/gxx.py); each file
// still includes what it needs.
#pragma once

#include <string.h>

#include <algorithm>

#include "checker.hpp"
