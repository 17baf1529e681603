// Command millrace-clickhouse runs the ClickHouse engine of libchdb as a server with the native and
// the HTTP protocol, until it gets a signal or its parent ends. It is a separate command because
// loading a shared library requires a dynamically linked binary, and millrace itself is static.
//
//	millrace-clickhouse -lib libchdb.so -path DIR -tcp 9000 -http 8123
//
// The demo and standalone start it. They download libchdb once, to millrace/libchdb/VERSION in the
// user's cache directory ($XDG_CACHE_HOME, or ~/.cache).
//
// Every acknowledged insert is on disk, because the tables use fsync. So the process may end at any
// time, and a signal ends it immediately.
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

// defaultLib returns the path at which millrace keeps the libchdb that it downloads.
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
	flag.StringVar(&o.lib, "lib", os.Getenv("MILLRACE_LIBCHDB"),
		"path of the shared library libchdb.so; millrace keeps its own in\n"+defaultLib())
	flag.StringVar(&o.path, "path", "", "folder of the tables")
	flag.StringVar(&o.host, "host", "127.0.0.1", "address to listen on")
	flag.IntVar(&o.tcp, "tcp", 9000, "port of the native protocol")
	flag.IntVar(&o.http, "http", 8123, "port of the HTTP protocol")
	flag.StringVar(&o.config, "config", "", "file with server settings (XML)")
	flag.BoolVar(&o.parentPipe, "parent-pipe", false, "end when standard input is closed")
	flag.Parse()

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() { <-signals; os.Exit(0) }()
	if o.parentPipe {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // returns when the parent closes the pipe or ends
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
		return fmt.Errorf("no library: set -lib or MILLRACE_LIBCHDB to the path of libchdb.so; millrace keeps its own in %s",
			defaultLib())
	case o.path == "":
		return fmt.Errorf("no -path: set it to the folder of the tables")
	}
	// The engine mishandles relative paths.
	path, err := filepath.Abs(o.path)
	if err != nil {
		return fmt.Errorf("resolve -path: %w", err)
	}
	args := []string{
		"clickhouse", "--path=" + path, "--listen_host=" + o.host,
		"--tcp_port=" + strconv.Itoa(o.tcp), "--http_port=" + strconv.Itoa(o.http),
	}
	if o.config != "" {
		args = append(args, "--config-file="+o.config)
	}
	// The listeners stop when the query that started them ends, so the last statement never ends.
	query := strings.Join([]string{
		"SYSTEM START LISTEN TCP", "SYSTEM START LISTEN HTTP",
		"SELECT sleepEachRow(1) FROM system.numbers FORMAT Null " +
			"SETTINGS function_sleep_max_microseconds_per_block = 0, max_block_size = 1",
	}, "; ")
	return serve(o.lib, append(args, "--multiquery", "--query="+query))
}

// serve calls the engine's command line. It returns only if the engine ends.
func serve(lib string, args []string) error {
	runtime.LockOSThread()
	handle, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return fmt.Errorf("load the library %s: %w", lib, err)
	}
	for _, name := range []string{"chdb_query_cmdline", "chdb_result_error"} {
		if _, err := purego.Dlsym(handle, name); err != nil {
			return fmt.Errorf("%s is not a supported libchdb: %w", lib, err)
		}
	}
	var cmdline func(argc int32, argv **byte) uintptr
	var resultError func(result uintptr) string
	purego.RegisterLibFunc(&cmdline, handle, "chdb_query_cmdline")
	purego.RegisterLibFunc(&resultError, handle, "chdb_result_error")
	argv := make([]*byte, len(args)+1) // the last element stays nil
	for i, arg := range args {
		argv[i] = &append([]byte(arg), 0)[0]
	}
	result := cmdline(int32(len(args)), &argv[0])
	runtime.KeepAlive(argv)
	if result == 0 {
		return fmt.Errorf("the engine ended without a message")
	}
	if message := resultError(result); message != "" {
		return fmt.Errorf("the engine ended: %s", message)
	}
	return fmt.Errorf("the engine ended")
}
