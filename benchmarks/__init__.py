"""Speed of AxiomRL beside other libraries, on the same work in the same minutes: `make bench`."""
