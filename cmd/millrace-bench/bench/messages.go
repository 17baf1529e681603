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

// Accounts. Probes are of the first one, floods that delay them of the second.
const (
	mainAccount  = "acme"
	floodAccount = "globex"
)

func accounts() []string { return []string{mainAccount, floodAccount, "hooli", "initech"} }

// The stores of every account.
const (
	source      = "1"
	destination = "2"
)

// consumed is the topic that the figures of rates read.
const consumedTopic = schemas.DuplicationHigh

// keys is their number, in every figure.
const keys = 10_000

// commands returns commands of topic consumed over all keys, of accounts in turn, encoded as the runtime's producer does it.
func commands(accounts ...string) (func(i int) schemas.Record, error) {
	return encoded(func(i int) schemas.Message { return command(consumedTopic, accounts[i%len(accounts)], i, "") })
}

// flood returns commands of one account, about other items than the probes: records of one key wait for one another
// whatever their class.
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
		Account: account, Space: "maps", Item: item(i), SourceStore: source, DestinationStore: destination,
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
