// Command millrace-clickhouse runs the ClickHouse engine of libchdb as a server with the
// native and the HTTP protocol on one address, until it is told to stop or its parent
// is gone. It is a command of its own because loading a shared library makes a
// binary dynamic, and millrace itself is static.
//
//	millrace-clickhouse -lib libchdb.so -path DIR -tcp 9000 -http 8123
//
// The demo and standalone start it by themselves. They fetch libchdb once, into
// millrace/libchdb/VERSION of the user's cache directory ($XDG_CACHE_HOME, or ~/.cache).
//
// Every insert that was answered is on disk (the tables ask for fsync), so the process
// may end at any moment: a signal ends it at once.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/ebitengine/purego"
)

// kept returns where millrace keeps libchdb, which it fetches when it needs one.
func defaultLib() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = "$HOME/.cache"
	}
	return filepath.Join(cache, "millrace", "libchdb", "VERSION", "libchdb.so")
}

type options struct {
	lib, path, host, config string
	tcp, http               int
	parentPipe              bool
}

func main() {
	var o options
	flag.StringVar(&o.lib, "lib", os.Getenv("MILLRACE_LIBCHDB"), "the shared library libchdb.so; millrace keeps its own in\n"+defaultLib())
	flag.StringVar(&o.path, "path", "", "folder of the tables")
	flag.StringVar(&o.host, "host", "127.0.0.1", "address to listen on")
	flag.IntVar(&o.tcp, "tcp", 9000, "port of the native protocol")
	flag.IntVar(&o.http, "http", 8123, "port of the HTTP protocol")
	flag.StringVar(&o.config, "config", "", "server settings (XML)")
	flag.BoolVar(&o.parentPipe, "parent-pipe", false, "end when standard input is closed")
	flag.Parse()

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() { <-signals; os.Exit(0) }()
	if o.parentPipe {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // its end, however it comes, is what is waited for
			os.Exit(0)
		}()
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "millrace-clickhouse:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	switch {
	case o.lib == "":
		return fmt.Errorf("no library: give -lib or set MILLRACE_LIBCHDB to the path of libchdb.so; millrace keeps its own in %s", defaultLib())
	case o.path == "":
		return fmt.Errorf("no -path: give the folder of the tables")
	}
	// The engine mixes up relative paths of its own.
	path, err := filepath.Abs(o.path)
	if err != nil {
		return fmt.Errorf("resolving -path: %w", err)
	}
	words := []string{
		"clickhouse", "--path=" + path, "--listen_host=" + o.host,
		"--tcp_port=" + strconv.Itoa(o.tcp), "--http_port=" + strconv.Itoa(o.http),
	}
	if o.config != "" {
		words = append(words, "--config-file="+o.config)
	}
	// The listeners live as long as the query that started them: the last one never ends.
	query := strings.Join([]string{
		"SYSTEM START LISTEN TCP", "SYSTEM START LISTEN HTTP",
		"SELECT sleepEachRow(1) FROM system.numbers FORMAT Null " +
			"SETTINGS function_sleep_max_microseconds_per_block = 0, max_block_size = 1",
	}, "; ")
	return serve(o.lib, append(words, "--multiquery", "--query="+query))
}

// serve calls the engine's command line; it returns only when the engine gave up.
func serve(lib string, words []string) error {
	runtime.LockOSThread()
	handle, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return fmt.Errorf("loading the library %s: %w", lib, err)
	}
	for _, name := range []string{"chdb_query_cmdline", "chdb_result_error"} {
		if _, err := purego.Dlsym(handle, name); err != nil {
			return fmt.Errorf("%s is no libchdb that this command knows: %w", lib, err)
		}
	}
	var cmdline func(argc int32, argv **byte) uintptr
	var resultError func(result uintptr) string
	purego.RegisterLibFunc(&cmdline, handle, "chdb_query_cmdline")
	purego.RegisterLibFunc(&resultError, handle, "chdb_result_error")
	argv := make([]*byte, len(words)+1) // the last stays null
	for i, word := range words {
		argv[i] = &append([]byte(word), 0)[0]
	}
	result := cmdline(int32(len(words)), &argv[0])
	runtime.KeepAlive(argv)
	if result == 0 {
		return fmt.Errorf("the engine ended without a word")
	}
	if message := resultError(result); message != "" {
		return fmt.Errorf("the engine ended: %s", message)
	}
	return fmt.Errorf("the engine ended")
}
