// A peer has 16 bits.
// EXERCISE-BEGIN 2
ProxyCommand* const slot = proxy_slot(ring, number);
ProxyCommand copy = c;
copy.peer = static_cast<uint8_t>(c.peer);
int4* const words = reinterpret_cast<int4*>(slot);
st_na_v4(words, two_words(c.target, c.source));
st_na_v4(words + 1, two_words(c.bytes, c.signal));
st_na_v4(words + 2, two_words(c.value, proxy_what(copy)));
st_release_sys_u64(&slot->number, number + 1);
// EXERCISE-END 2
