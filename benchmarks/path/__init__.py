"""The cost of one record on its way, for gateways and for clients apart, also beside another checkout."""
