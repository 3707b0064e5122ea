// An address has 64 bits.
// EXERCISE-BEGIN 2
ProxyCommand* const slot = proxy_slot(ring, number);
int4* const words = reinterpret_cast<int4*>(slot);
st_na_v4(words, two_words(c.target, static_cast<uint32_t>(c.source)));
st_na_v4(words + 1, two_words(c.bytes, c.signal));
st_na_v4(words + 2, two_words(c.value, proxy_what(c)));
st_release_sys_u64(&slot->number, number + 1);
// EXERCISE-END 2
