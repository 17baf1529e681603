package main

import (
	"context"
	"os"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage/outbox"
)

// newOutboxIn is the command "outbox DIR": it makes an outbox with three puts of unknown outcome.
func newOutboxIn(ts *testscript.TestScript, _ bool, args []string) {
	f, err := outbox.Open(outbox.Config{Dir: ts.MkAbs(args[0])})
	ts.Check(err)
	for _, item := range []string{"a", "b", "c"} {
		in := outbox.Mutation{Draft: &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: item}}
		_, err := f.Intend(context.Background(), in)
		ts.Check(err)
	}
	ts.Check(f.Close())
}

// holdOutbox is the command "hold DIR": this process opens the outbox until the script ends.
func holdOutbox(ts *testscript.TestScript, _ bool, args []string) {
	f, err := outbox.Open(outbox.Config{Dir: ts.MkAbs(args[0])})
	ts.Check(err)
	ts.Defer(func() { ts.Check(f.Close()) })
	ts.Setenv("HOLDER", strconv.Itoa(os.Getpid()))
}

// flipBit is the command "flip FILE BYTE".
func flipBit(ts *testscript.TestScript, _ bool, args []string) {
	name := ts.MkAbs(args[0])
	b, err := os.ReadFile(name)
	ts.Check(err)
	at, err := strconv.Atoi(args[1])
	ts.Check(err)
	b[at] ^= 1
	ts.Check(os.WriteFile(name, b, 0o600))
}
