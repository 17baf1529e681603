package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/bench"
	"github.com/millrace/millrace/streams/storage/s3/s3bench"
)

func newBenchStorage() *cobra.Command {
	var f benchFlags
	c := f.command("storage", "Take the figures of stores, in one table", `
Takes the figures of stores and of the outbox on this machine, now: an S3 server in memory, then a real one, and their
clients are processes that share it, ours and the peer's in turns. It takes about six minutes, and figures mean little
on a machine that does anything else meanwhile. What the rounds gave goes to standard error.

A peer that is not there is reported as absent; 'make peers servers' builds them.`, bench.Storage)
	c.Flags().StringVar(&f.cfg.Peers, "peers", "", "`DIR` of the peers' and the S3 server's programs (default: peers, beside this program)")
	return c
}

// newBenchObjects is the S3 server of the figures, for 'bench storage' to start.
func newBenchObjects() *cobra.Command {
	var load s3bench.Load
	c := &cobra.Command{
		Use:    "objects",
		Short:  "Serve objects in memory until standard input ends",
		Hidden: true,
		Args:   noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if load.Objects < 0 || load.Size < 0 || load.Keys < 0 {
				return fmt.Errorf("%w: wants no negative numbers", errUsage)
			}
			return s3bench.Serve(c.Context(), load, c.InOrStdin(), c.OutOrStdout())
		},
	}
	c.Flags().StringVar(&load.Bucket, "bucket", "", "`NAME` of the bucket that is there")
	c.Flags().IntVar(&load.Objects, "objects", 0, "hold `N` objects")
	c.Flags().Int64Var(&load.Size, "size", 0, "`BYTES` of each")
	c.Flags().IntVar(&load.Keys, "keys", 0, "list `N` keys instead of what it holds")
	return c
}

// newBenchStorageSide is our side of a figure of stores, for 'bench storage' to start.
func newBenchStorageSide() *cobra.Command {
	var side bench.StorageSide
	c := &cobra.Command{
		Use:    "storageside",
		Short:  "Do something with every item of a space and say how long it took",
		Hidden: true,
		Args:   noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			side.Secret = os.Getenv(bench.SecretVariable)
			line, err := side.Run(c.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n", line)
			return err
		},
	}
	c.Flags().StringVar(&side.Do, "do", "", "hash, copy or list")
	c.Flags().StringVar(&side.Endpoint, "endpoint", "", "`URL` of an S3 server")
	c.Flags().StringVar(&side.Access, "access", "", "access `KEY`")
	c.Flags().StringVar(&side.Source, "source", "", "`PREFIX` of the buckets that are read")
	c.Flags().StringVar(&side.Target, "target", "", "`PREFIX` of the buckets that are written")
	c.Flags().StringVar(&side.Space, "space", "", "`NAME` of a space")
	c.Flags().IntVar(&side.Workers, "workers", 0, "do `N` items at a time")
	c.Flags().StringVar(&side.Profile, "profile", "", "write a CPU profile to `FILE`")
	return c
}
