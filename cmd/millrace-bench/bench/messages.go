package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The accounts: ours, and a neighbour.
const (
	us   = "acme"
	them = "globex"
)

// keys is how many there are, in every figure.
const keys = 10_000

// raw returns small records over all keys: 100 bytes, half of which compression can make
// nothing of.
func raw() func(i int) schemas.Record {
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same in each run
	recs := make([]schemas.Record, keys)
	for k := range recs {
		value := fmt.Appendf(nil, "%-50d", k)
		for len(value) < 100 {
			value = append(value, byte(rng.Uint32()))
		}
		recs[k] = schemas.Record{Topic: schemas.Changes, Key: fmt.Appendf(nil, "bench/maps/item-%07d", k), Value: value}
	}
	return func(i int) schemas.Record { return recs[i%keys] }
}

// whole returns changes, encoded as the runtime's producer does it.
func whole() (func(i int) schemas.Record, error) {
	return encoded(func(i int) schemas.Message {
		c := &pb.Change{
			Op: pb.Op_OP_ADD, Account: us, Store: "1", Space: "maps", Item: item(i), Version: "1", Time: epoch(),
		}
		c.Id = schemas.ChangeID(c)
		return schemas.Message{Topic: schemas.Changes, Body: c}
	})
}

// flood returns commands of one account, about items that no probe is about: what a key has
// in front of a message is no matter of its class.
func flood(topic schemas.Topic, account string) (func(i int) schemas.Record, error) {
	return encoded(func(i int) schemas.Message { return command(topic, account, keys+i, "") })
}

// encoded encodes one message for each key; they come round and round.
func encoded(message func(i int) schemas.Message) (func(i int) schemas.Record, error) {
	recs := make([]schemas.Record, keys)
	for k := range recs {
		var err error
		if recs[k], err = schemas.Encode(message(k)); err != nil {
			return nil, err
		}
	}
	return func(i int) schemas.Record { return recs[i%keys] }, nil
}

func item(i int) string { return fmt.Sprintf("item-%07d", i) }

func epoch() *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: 1_700_000_000} }

// command returns one that the copier's Pool reads; cause is free for its maker's use.
func command(topic schemas.Topic, account string, i int, cause string) schemas.Message {
	c := &pb.DuplicationCommand{
		Account: account, Space: "maps", Item: item(i), SourceStore: "1", DestinationStore: "2",
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Cause: cause, Time: epoch(),
	}
	c.Id = schemas.ID("command", account, c.GetItem(), cause)
	return schemas.Message{Topic: topic, Body: c}
}

// zipf draws n keys, the kth as often as 1/(k+1)^0.99 has it: as the YCSB
// benchmark does. The same come out each time.
func zipf(n int) []int {
	sums := make([]float64, keys)
	sum := 0.0
	for k := range sums {
		sum += math.Pow(float64(k+1), -0.99)
		sums[k] = sum
	}
	rng := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // the same in each run
	drawn := make([]int, n)
	for i := range drawn {
		drawn[i] = sort.SearchFloat64s(sums, rng.Float64()*sum)
	}
	return drawn
}
