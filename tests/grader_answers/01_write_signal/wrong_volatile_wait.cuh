// Sees the signal in time, and nothing makes it see the data.
// EXERCISE-BEGIN 2
while (*reinterpret_cast<const volatile uint64_t*>(signal) < expected) {
}
return true;
// EXERCISE-END 2
