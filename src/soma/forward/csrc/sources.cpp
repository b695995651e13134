// What a library was built from: `soma.forward.native` compares this hash with the sources that are installed.
extern "C" {
extern const char soma_sources[] __attribute__((visibility("default")));
const char soma_sources[] = SOMA_SOURCES;
}
