// Command 256 takes slot 0 of 512.
// EXERCISE-BEGIN 2
ProxyCommand* const slot = ring.slots + static_cast<uint8_t>(number % ring.num_slots);
int4* const words = reinterpret_cast<int4*>(slot);
st_na_v4(words, two_words(c.target, c.source));
st_na_v4(words + 1, two_words(c.bytes, c.signal));
st_na_v4(words + 2, two_words(c.value, proxy_what(c)));
slot->place = call_site();
st_release_sys_u64(&slot->number, number + 1);
// EXERCISE-END 2
