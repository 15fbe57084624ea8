// Load generator for JetStream with NATS' own client: the same load as benchmarks/load/generator.c gives a gateway.
//
//	jetstream-load URL CONNECTIONS IN_FLIGHT COUNT RATE
//
// Each connection has at most IN_FLIGHT records of 100 B under way, and COUNT records are sent in all. With a RATE above 0, record n
// is due n/RATE seconds after the start and belongs to connection n modulo CONNECTIONS; its time begins when it is due. Otherwise an
// acknowledgement sends the next record. The program prints the number of records, the elapsed time, and the median and the 99th
// percentile of the times to an acknowledgement, all in nanoseconds. Any error ends the program with exit code 1.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	subject = "bench"
	size    = 100
	silence = 30 * time.Second // without an acknowledgement; then the run fails
)

func check(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "JetStream load: %v\n", err)
		os.Exit(1)
	}
}

func number(text string, least int) int {
	value, err := strconv.Atoi(text)
	if err == nil && value < least {
		err = fmt.Errorf("%d is below %d", value, least)
	}
	check(err)
	return value
}

// publish sends one record, and returns the sequence that JetStream gave it.
func publish(stream jetstream.JetStream, payload []byte) uint64 {
	within, cancel := context.WithTimeout(context.Background(), silence)
	defer cancel()
	acknowledged, err := stream.Publish(within, subject, payload)
	check(err)
	if acknowledged.Duplicate {
		check(fmt.Errorf("sequence %d acknowledges a duplicate", acknowledged.Sequence))
	}
	return acknowledged.Sequence
}

func main() {
	if len(os.Args) != 6 {
		check(fmt.Errorf("5 arguments are needed: URL CONNECTIONS IN_FLIGHT COUNT RATE"))
	}
	connections, inFlight := number(os.Args[2], 1), number(os.Args[3], 1)
	count, rate := number(os.Args[4], 1), number(os.Args[5], 0)
	streams := make([]jetstream.JetStream, connections)
	for n := range streams {
		connection, err := nats.Connect(os.Args[1])
		check(err)
		streams[n], err = jetstream.New(connection)
		check(err)
	}
	times, sequences := make([]time.Duration, count), make([]uint64, count)
	var next atomic.Int64
	var workers sync.WaitGroup
	begin := time.Now()
	for n, stream := range streams {
		var own atomic.Int64 // records of this connection that have begun, in a paced run
		for range inFlight {
			workers.Add(1)
			go func() {
				defer workers.Done()
				payload := make([]byte, size)
				for {
					record, started := int(next.Add(1))-1, time.Now()
					if rate > 0 {
						record = n + (int(own.Add(1))-1)*connections
						started = begin.Add(time.Duration(record) * time.Second / time.Duration(rate))
						time.Sleep(time.Until(started))
					}
					if record >= count {
						return
					}
					sequences[record] = publish(stream, payload)
					times[record] = time.Since(started)
				}
			}()
		}
	}
	workers.Wait()
	elapsed := time.Since(begin)
	slices.Sort(sequences)
	if len(slices.Compact(sequences)) != count {
		check(fmt.Errorf("%d records have fewer sequences", count))
	}
	slices.Sort(times)
	fmt.Println(count, elapsed.Nanoseconds(), times[count/2].Nanoseconds(), times[count*99/100].Nanoseconds())
}
