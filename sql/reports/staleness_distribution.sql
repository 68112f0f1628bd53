-- Question: How is staleness distributed over the whole run?
-- One row a staleness d (null: unknown): the consumed groups of that d (versions between dispatch and step),
-- and the target tokens of that d (versions between the weights that sampled the token and the step).
-- Then: a long tail is what harms; lower phi, or take the groups that make it (staleness) apart.
-- Empty: no group has been consumed: nothing was trained from this lake.
-- Key: d
with counted as (
    select d, 1 as groups, 0::bigint as targets
    from staleness
    union all
    select s.consumed_version - r.version, 0, r.output_end - r.output_start
    from sampled_ranges as r
    join staleness as s on s.group_id = r.group_id
    where r.path is not null
),

by_d as (
    select d, sum(groups)::bigint as groups, sum(targets)::bigint as targets
    from counted
    group by d
),

final as (
    select
        d,
        groups,
        groups / nullif(sum(groups) over (), 0) as share,
        targets,
        targets / nullif(sum(targets) over (), 0) as share_of_targets
    from by_d
)

select * from final
