"""The cost of one record for gateways and for clients apart, alone or in comparison with another checkout."""
