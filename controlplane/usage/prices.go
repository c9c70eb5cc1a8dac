package usage

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"

	"go.yaml.in/yaml/v3"

	"github.com/berth-cloud/berth/raftstore/record"
)

//go:embed prices.yaml
var builtin []byte

// Prices is what resources cost. A nil one has no prices.
type Prices struct {
	table map[string]map[record.Resource]uint64 // micro-USD, by product
	// Own says that the operator has set them: then everybody's usage has a price, and
	// not only that of workspaces whose tier has a credit or a budget.
	Own bool
}

// productPrices are the prices of a product in a file, in micro-USD.
type productPrices struct {
	VCPU     price `yaml:"vcpu_hour"`
	CPU      price `yaml:"cpu_hour"`
	Memory   price `yaml:"memory_gib_hour"`
	Disk     price `yaml:"disk_gib_hour"`
	Snapshot price `yaml:"snapshot_gib_hour"`
	Volume   price `yaml:"volume_gib_hour"`
	Archive  price `yaml:"archive_gib_hour"`
}

// price is whole micro-USD: a fraction would be cut off, and who writes 0.0075 means
// dollars.
type price int64

// UnmarshalYAML implements yaml.Unmarshaler.
func (p *price) UnmarshalYAML(n *yaml.Node) error {
	if n.Tag != "!!int" {
		return fmt.Errorf("line %d: %q is no whole number of micro-USD", n.Line, n.Value)
	}
	return n.Decode((*int64)(p))
}

// The units of prices, in the units that usage is counted in.
const (
	msPerHour  = 3_600_000
	mibPerGiB  = 1024
	perCPUHour = msPerHour
	perGiBHour = msPerHour * mibPerGiB
)

// denominator is how much of a resource its price buys.
func denominator(r record.Resource) uint64 {
	if r == record.ResourceVCPU || r == record.ResourceCPU {
		return perCPUHour
	}
	return perGiBHour
}

// maxPrice is more than anything costs: a thousand USD an hour.
const maxPrice = 1_000_000_000

// LoadPrices reads prices from a file, or takes the built-in ones if file is "".
func LoadPrices(file string) (*Prices, error) {
	raw := builtin
	if file != "" {
		var err error
		if raw, err = os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	p, err := parsePrices(raw)
	if err != nil {
		return nil, err
	}
	p.Own = file != ""
	return p, nil
}

// parsePrices reads a table: a YAML map of products, each a map of prices.
func parsePrices(raw []byte) (*Prices, error) {
	var in map[string]productPrices
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(&in); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("prices: %w", err)
	}
	p := &Prices{table: map[string]map[record.Resource]uint64{}}
	for product, of := range in {
		switch product {
		case record.ProductSandbox, record.ProductDatabase, record.ProductApp:
		default:
			return nil, fmt.Errorf("prices: %q is no product: want sandbox, database or app", product)
		}
		p.table[product] = map[record.Resource]uint64{}
		for r, of := range map[record.Resource]price{
			record.ResourceVCPU: of.VCPU, record.ResourceCPU: of.CPU, record.ResourceMemory: of.Memory,
			record.ResourceDisk: of.Disk, record.ResourceSnapshot: of.Snapshot, record.ResourceVolume: of.Volume, record.ResourceArchive: of.Archive,
		} {
			if of < 0 || of > maxPrice {
				return nil, fmt.Errorf("prices: %s: %d is no price: want 0 to %d micro-USD", product, of, maxPrice)
			}
			p.table[product][r] = uint64(of)
		}
	}
	return p, nil
}

// add adds an amount to a line, and its cost where it has one. The cost is exact: what
// is less than a micro-USD is kept.
func (p *Prices) add(u *record.Usage, product string, r record.Resource, amount int64, priced bool) {
	if amount <= 0 {
		return
	}
	l := u.Line(product, r)
	l.Amount += amount
	if p == nil || !priced {
		return
	}
	price, den := p.table[product][r], denominator(r)
	hi, lo := bits.Mul64(uint64(amount), price)
	lo, carry := bits.Add64(lo, l.Rest, 0)
	hi += carry
	if hi >= den { // more than 584 thousand years of a micro-USD: no such amount is real
		return
	}
	cost, rest := bits.Div64(hi, lo, den)
	l.MicroUSD, l.Rest = l.MicroUSD+int64(cost), rest
}
