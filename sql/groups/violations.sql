-- One row a violating row of an audit of derived tables, with the row itself as JSON: what keeps a complete
-- group from being ready. The ingest worker and `headrace materialize` ask in the run that derives, and write
-- the rows of such a group here instead of into the other tables of the set. Where a set has none yet, its
-- tables are asked as they lie there. Rows of a group that is ready are history: it was sound later.
-- The audits that hold a set against scores, announcements and steps as they came in are not for here.
-- Key: group_id, audit, row
with final as (
    select group_id, 'advantages_not_relative' as audit, to_json(a)::text as row
    from advantages_not_relative as a
    union all
    select group_id, 'call_not_its_nodes', to_json(a)::text from call_not_its_nodes as a
    union all
    select group_id, 'derived_twice', to_json(a)::text from derived_twice as a
    union all
    select group_id, 'lower_class_first', to_json(a)::text from lower_class_first as a
    union all
    select group_id, 'missing_trained', to_json(a)::text from missing_trained as a
    union all
    select group_id, 'orphan_node', to_json(a)::text from orphan_node as a where node is not null
    union all
    select group_id, 'path_broken', to_json(a)::text from path_broken as a
    union all
    select group_id, 'paths_disagree', to_json(a)::text from paths_disagree as a
    union all
    select group_id, 'segment_not_its_node', to_json(a)::text from segment_not_its_node as a
    union all
    select group_id, 'targets_overlap', to_json(a)::text from targets_overlap as a
    union all
    select group_id, 'token_trained_twice', to_json(a)::text from token_trained_twice as a
    union all
    select group_id, 'trainable_left_out', to_json(a)::text from trainable_left_out as a
    union all
    select group_id, 'tree_not_its_nodes', to_json(a)::text from tree_not_its_nodes as a
    union all
    select group_id, 'undelivered_trained', to_json(a)::text from undelivered_trained as a
    union all
    select group_id, 'weights_do_not_sum', to_json(a)::text from weights_do_not_sum as a
)

select * from final
