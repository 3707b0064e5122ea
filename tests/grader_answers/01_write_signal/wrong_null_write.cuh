// Crashes.
// EXERCISE-BEGIN 1
char* to = nullptr;
for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<const char*>(source)[i];
signal_add(signal, increment, peer);
// EXERCISE-END 1
