// The tag by an atomic, the data by a volatile load: two looks.
// EXERCISE-BEGIN 2
uint64_t seen = 0;
unsigned long long* const word = reinterpret_cast<unsigned long long*>(const_cast<uint64_t*>(&packet->tag));
const bool ok = poll_until([&] {
    seen = atomicAdd_system(word, 0ull);
    return seen == tag;
}, [&] { record_fault(kFaultTimeout, info, seen, tag); });
if (ok) *data = *const_cast<volatile uint64_t*>(&packet->data);
return ok;
// EXERCISE-END 2
