// Command libchdb prints the path of the pinned libchdb, the engine of millrace-clickhouse. If it is not in the user's
// cache directory, it is downloaded with npm and its hash is compared. The build of the images calls it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/millrace/millrace/sinks/clickhouse/embedded"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	path, err := embedded.Fetch(ctx, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "libchdb:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, path)
}
