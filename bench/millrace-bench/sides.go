package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench"
	"github.com/millrace/millrace/bench/kafkabench"
	"github.com/millrace/millrace/bench/s3bench"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

// The hidden commands of this file are child processes that the benchmarks start.

// hidden returns a hidden command that does one job and prints its result as one line.
func hidden(name, short string, do func(context.Context) (line []byte, err error)) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Hidden: true, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			line, err := do(c.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n", line)
			return err
		},
	}
}

func newBroker() *cobra.Command {
	return &cobra.Command{
		Use: "broker", Short: "Run an in-memory broker until standard input ends", Hidden: true, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return kafkabench.Serve(c.InOrStdin(), c.OutOrStdout()) },
	}
}

func newObjects() *cobra.Command {
	var load s3bench.Load
	c := &cobra.Command{
		Use: "objects", Short: "Run an in-memory S3 server until standard input ends", Hidden: true, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if load.Objects < 0 || load.Size < 0 || load.Keys < 0 {
				return fmt.Errorf("%w: numbers must not be negative", usage.Err)
			}
			return s3bench.Serve(c.Context(), load, c.InOrStdin(), c.OutOrStdout())
		},
	}
	c.Flags().StringVar(&load.Bucket, "bucket", "", "create the bucket `NAME`")
	c.Flags().IntVar(&load.Objects, "objects", 0, "hold `N` objects")
	c.Flags().Int64Var(&load.Size, "size", 0, "size of each object in `BYTES`")
	c.Flags().IntVar(&load.Keys, "keys", 0, "list `N` generated keys instead of the stored objects")
	return c
}

func newSide() *cobra.Command {
	var side bench.Side
	c := hidden("side", "Consume records and print the time it took", func(ctx context.Context) ([]byte, error) {
		if side.Broker == "" || side.Group == "" || side.Records <= 0 {
			return nil, fmt.Errorf("%w: --broker, --group and --records are required", usage.Err)
		}
		return side.Consume(ctx)
	})
	c.Flags().StringVar(&side.Broker, "broker", "", "`HOST:PORT` of a broker")
	c.Flags().StringVar(&side.Group, "group", "", "consumer `GROUP`, without the prefix")
	c.Flags().IntVar(&side.Records, "records", 0, "stop after `N` records")
	return c
}

func newSinkSide() *cobra.Command {
	var side bench.SinkSide
	c := hidden("sinkside", "Run the role sink and print the time it took", func(ctx context.Context) ([]byte, error) {
		if side.Broker == "" || side.ClickHouse == "" || side.Database == "" || side.Records <= 0 {
			return nil, fmt.Errorf("%w: --broker, --clickhouse, --database and --records are required", usage.Err)
		}
		return side.Store(ctx)
	})
	c.Flags().StringVar(&side.Broker, "broker", "", "`HOST:PORT` of a broker")
	c.Flags().StringVar(&side.ClickHouse, "clickhouse", "", "`HOST:PORT` of a ClickHouse")
	c.Flags().StringVar(&side.Database, "database", "", "`NAME` of a migrated database")
	c.Flags().IntVar(&side.Partitions, "partitions", 0, "`N` partitions per topic")
	c.Flags().IntVar(&side.Records, "records", 0, "stop after `N` records")
	return c
}

func newStorageSide() *cobra.Command {
	var side bench.StorageSide
	c := hidden("storageside", "Process every item of a space and print the time it took",
		func(ctx context.Context) ([]byte, error) { return side.Run(ctx) }) //nolint:gocritic // flags set side later
	c.Flags().StringVar(&side.Do, "do", "", "hash, copy or list")
	c.Flags().StringVar(&side.Endpoint, "endpoint", "", "`URL` of an S3 server")
	c.Flags().StringVar(&side.Root, "root", "", "`DIR` with a subdirectory per file store, instead of an S3 server")
	c.Flags().StringVar(&side.Source, "source", "",
		"`ID` of the source store; with an S3 server also its bucket prefix")
	c.Flags().StringVar(&side.Target, "target", "", "`ID` of the target store")
	c.Flags().StringVar(&side.Space, "space", "", "`NAME` of a space")
	c.Flags().IntVar(&side.Workers, "workers", 0, "process `N` items concurrently")
	c.Flags().StringVar(&side.Profile, "profile", "", "write a CPU profile to `FILE`")
	return c
}

func newRolesSide() *cobra.Command {
	var side bench.RolesSide
	c := hidden("rolesside", "Run all roles for one job and print the time it took",
		func(ctx context.Context) ([]byte, error) { return side.Run(ctx) }) //nolint:gocritic // flags set side later
	c.Flags().StringVar(&side.Do, "do", "", "store, change, delete, import, check, adopt or adopt-live")
	c.Flags().StringVar(&side.Dir, "dir", "", "empty `DIR` for state, stores and output")
	c.Flags().StringVar(&side.Files, "files", "", "store the files below `DIR`")
	c.Flags().StringVar(&side.Profile, "profile", "", "write a CPU profile of check to `FILE`")
	c.Flags().IntVar(&side.Items, "items", 0, "change, delete, import, check, adopt or adopt-live `N` items")
	c.Flags().IntVar(&side.Limit, "limit", 0, "set deletes.max_count to `N`")
	c.Flags().DurationVar(&side.Window, "window", 0, "count deletes or copies for this `DURATION`")
	return c
}

func newHashLoop() *cobra.Command {
	var dir string
	c := hidden("hashloop", "Read and hash the files of a directory, and print the time it took",
		func(context.Context) ([]byte, error) { return bench.HashLoop(dir) })
	c.Flags().StringVar(&dir, "dir", "", "the `DIR` with the files")
	return c
}

func newSweepSide() *cobra.Command {
	var side bench.SweepSide
	c := hidden("sweepside", "Run one round of a sweep and print the time it took",
		func(ctx context.Context) ([]byte, error) { return side.Run(ctx) }) //nolint:gocritic // flags set side later
	c.Flags().StringVar(&side.Do, "do", "", "pairs or reconcile")
	c.Flags().StringVar(&side.Root, "root", "", "`DIR` with two file stores, instead of generated listings")
	c.Flags().StringVar(&side.Space, "space", "", "`NAME` of a space")
	c.Flags().StringVar(&side.ClickHouse, "clickhouse", "", "`HOST:PORT` of a ClickHouse")
	c.Flags().StringVar(&side.Database, "database", "", "`NAME` of a filled database")
	c.Flags().IntVar(&side.Items, "items", 0, "compare `N` items")
	c.Flags().IntVar(&side.Differing, "differing", 0, "expect `N` differences")
	c.Flags().StringVar(&side.Profile, "profile", "", "write a CPU profile to `FILE`")
	return c
}
